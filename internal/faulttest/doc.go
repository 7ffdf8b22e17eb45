// Package faulttest has the faults that package verify does not try: of several locks at
// once, leases that move, elections, operations that run once, crowds and clocks. It uses
// real servers, processes and signals, through the public API. It has tests only.
package faulttest
