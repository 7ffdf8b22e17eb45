package main

// handedOn is why tokens may seem to fall where exclusion is broken for a time.
const handedOn = "Most likely a process that does not know yet that it has lost the lock hands it on to its own callers, with tokens that " +
	"begin with that of its grant: lower than that of the new holder. The resource that checks tokens refused their writes."

// explained says of cells why what was seen is not what is claimed.
var explained = map[string]string{
	"sentinel f13":   handedOn,
	"zookeeper3 f20": handedOn,
	"zookeeper3 f12": "Seen in the one run that was made, beside two other stores on two cores: 12 s where 10 s are owed. " +
		"Whether the machine was slow or the bound is too short is not known yet.",
}
