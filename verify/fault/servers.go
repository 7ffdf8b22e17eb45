package fault

// serverFaults break servers, and the wires between them.
var serverFaults []Fault
