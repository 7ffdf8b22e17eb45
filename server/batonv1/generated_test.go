package batonv1_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

var generate = flag.Bool("generate", false, "write the generated code")

// described are the descriptions, and generated the files that come from them, from the
// root of the module.
var (
	described = []string{"server/batonv1/baton.proto", "server/rls/internal/rlsv1/rls.proto"}
	generated = []string{
		"server/batonv1/baton.pb.go",
		"server/batonv1/batonv1connect/baton.connect.go",
		"server/rls/internal/rlsv1/rls.pb.go",
	}
)

// TestGenerated compares the generated code with the descriptions.
func TestGenerated(t *testing.T) {
	t.Parallel()
	const root = "../.."
	protoc, dir := testserver.Protoc(t), t.TempDir()
	cmd := exec.Command(
		protoc, "-I", ".", described[0], described[1],
		"--plugin", "protoc-gen-go="+tool(t, "protoc-gen-go"), "--go_out", dir, "--go_opt", "paths=source_relative",
		"--plugin", "protoc-gen-connect-go="+tool(t, "protoc-gen-connect-go"), "--connect-go_out", dir, "--connect-go_opt", "paths=source_relative,simple=true",
	)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, out)
	}
	for _, name := range generated {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want = anyProtoc(want)
		here := filepath.Join(root, name)
		if *generate {
			if err := os.MkdirAll(filepath.Dir(here), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(here, want, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(here)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its .proto describes: go generate ./server/batonv1", name)
		}
	}
}

// tool is the path of a program of internal/tools/go.mod.
func tool(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "tool", "-n", name).CombinedOutput()
	if err != nil {
		t.Fatalf("go tool -n %s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// anyProtoc leaves out the version of protoc, which the system decides.
func anyProtoc(text []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("// \tprotoc ")) && !bytes.HasPrefix(line, []byte("// - protoc ")) {
			kept = append(kept, line...)
		}
	}
	return kept
}
