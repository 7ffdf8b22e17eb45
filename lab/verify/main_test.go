package verify

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	plant, plantConn = spoil, spoilConns
	Main()
	// Trials wait for most of their time.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("4") // it is a number
	}
	os.Exit(m.Run())
}
