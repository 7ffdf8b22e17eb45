package verify

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	plant, plantConn = spoil, spoilConns
	Main()
	os.Exit(m.Run())
}
