package verify

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	plant = spoil
	Main()
	os.Exit(m.Run())
}
