package main

// explained says of cells why what was seen is not what is claimed.
var explained = map[string]string{}
