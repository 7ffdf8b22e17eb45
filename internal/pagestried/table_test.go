//go:build unix

package pagestried

// cannot are commands that no test runs, and why. A command is "PAGE: START": each line of
// the page's blocks that begins with START.
var cannot = map[string]string{
	"README.md: make test":       "it is the run of all tests, this one among them",
	"README.md: make comparison": "it takes hours: every program, on every store",

	"clients/README.md: go install":                                "there is no release yet",
	"docs/proxies.md: for i in 1 2 3 4":                            "it needs a proxy; TestNginx and TestCaddy of internal/proxies ask through them",
	"docs/reference/cli.md: baton lab run --all":                   "it takes minutes; TestQuestions of internal/lab/questions makes all experiments",
	"docs/reference/cli.md: baton completion powershell":           "it needs PowerShell",
	"README.md: baton verify":                                      verifies,
	"docs/testing.md: baton verify":                                verifies,
	"docs/reference/cli.md: baton verify":                          verifies,
	"README.md: baton bench":                                       measures,
	"docs/reference/cli.md: baton bench":                           measures,
	"docs/index.md: go install github.com/batonhq/baton/cmd/baton": "there is no release yet",
	"docs/index.md: mkdir first":                                   "there is no release yet that its next line could get",
	"docs/index.md: cd .. && mkdir limit":                          "there is no release yet that its next line could get",
	"docs/index.md: go mod init":                                   "there is no release yet that its next line could get",
	"docs/index.md: go get github.com/batonhq/baton":               "there is no release yet",
	"docs/index.md: go mod tidy":                                   "there is no release yet",
}

// guides are the blocks of commands that TestGuides runs, by the block: elsewhere says how it
// is named.
var guides = map[string]guide{
	"README.md: baton run nightly-report": {
		programs: map[string]string{"./train.sh": "exec sleep 600", "./api": "exec sleep 600"},
		before:   "HOST=web1",
		goesOn: map[string]string{
			"baton run --permits":   "baton show gpu | grep -q 2/5",
			"baton elect --value":   "baton show api | grep -q web1:80",
			"baton elect --observe": "true",
		},
		prints: []string{"./report.sh ran\n", "./poll.sh ran\n", "./reload.sh ran\n", "./migrate.sh ran\n", "./send-mail.sh ran\n", "code 75\n"},
		after:  "BATON_STORE= baton run -n api -- ./report.sh || echo code $?", // while another one leads
	},
	"README.md: baton doctor":         {prints: []string{"Found: "}, exits: map[string]int{"baton doctor": 1}},
	"docs/index.md: baton run report": {prints: []string{"token …\n", "baton: waiting: lock \"report\" is held by …\n"}},
	"docs/agent.md: baton agent": {
		instead: []string{"www-data", "$(id -gn)"},
		goesOn:  map[string]string{"baton agent": "[ -S /run/baton/agent.sock ]"},
		after:   `echo '{"id":1,"do":"take","key":"invoice/42"}' | socat -t1 - UNIX-CONNECT:/run/baton/agent.sock; stat -c %a /run/baton/agent.sock`,
		prints:  []string{`{"id":1,`, "660\n"},
	},
	"docs/page.md: baton agent": {
		goesOn: map[string]string{"baton agent": "[ -s /run/baton/agent.sock.page ]"},
		after:  "stat -c %a /run/baton/agent.sock.page; curl -sf \"$(cat /run/baton/agent.sock.page)\"",
		prints: []string{"600\n", "<title>"},
	},
	"docs/server.md: baton serve": {
		before: "head -c 32 /dev/urandom | base64 >/etc/baton/secret; chmod 600 /etc/baton/secret",
		goesOn: map[string]string{"baton serve": "curl -sf http://127.0.0.1:7420/readyz"},
		after:  `curl -s http://127.0.0.1:7420/baton.v1.Locks/Acquire -H 'Content-Type: application/json' -d '{"key":"invoice/42"}'; echo`,
		prints: []string{`{"state":"HELD",`},
	},
	"docs/proxies.md: baton serve": {
		before: "printf '%s\\n' 'rules:' '  - {name: per-client, requests: 3, period: 1m}' >rules.yaml",
		goesOn: map[string]string{"baton serve": "curl -sf http://127.0.0.1:7420/readyz"},
		after:  `for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code}\n' 127.0.0.1:7420/v1/limit -H 'Baton-Rule: per-client' -H 'Baton-Key: k'; done`,
		prints: []string{"200\n200\n200\n429\n"},
	},
	"docs/limits.md: baton limit --rate 10/1m": {
		instead: []string{"curl https://…", "./fetch"},
		after:   "for i in 2 3 4 5 6 7 8 9 10; do baton limit --rate 10/1m mail/alice -- true; done; baton limit --rate 10/1m mail/alice -- ./send-mail.sh || echo code $?",
		prints:  []string{"./send-mail.sh ran\n./fetch ran\n", "code 75\n"},
	},
	"docs/limits.md: baton limit simulate": {after: "grep -c '<svg' boundary.svg", prints: []string{"1\n"}},
	"docs/limits.md: baton limit set": {
		prints: []string{"api/acme  500 per 1m  …\n"},
	},
	"docs/limits.md: baton limit top": {
		before: "baton limit --rate 100/1m -n 40 'minute/{tenant/7}'; baton limit --rate 10/1m -a token-bucket tokens/x",
		prints: []string{"minute/{tenant/7} …", "tokens/x …"},
	},
	"docs/metrics.md: 0 3 * * *": {
		instead:  []string{"0 3 * * *  ", ""},
		programs: map[string]string{"/usr/local/bin/nightly": "echo nightly ran"},
		after:    "grep exit_code /var/lib/node_exporter/nightly.prom",
		prints:   []string{"nightly ran\n", "baton_command_exit_code{file=\"nightly.prom\"} 0\n"},
	},
	"docs/rules.md: baton limit check": {
		before: rulesFile + accessLog,
		prints: []string{"api …"},
	},
	"docs/security.md: baton token": {
		before: "echo 'team-a  sha256:" + hash + "  a/=lock' >/etc/baton/roles; chmod 600 /etc/baton/roles",
	},
	"docs/fencing.md: baton run account/7": {
		instead:  []string{"accounts.internal", "accounts"},
		programs: map[string]string{"curl": "echo \"$@\""},
		prints:   []string{"-fX PUT -H X-Fence-Token: 1… -d @new.json https://accounts/account/7\n"},
	},
	"docs/testing.md: baton doctor": {exits: map[string]int{"baton doctor": 1}},

	"docs/reference/cli.md: baton -b redis": {},
	"docs/reference/cli.md: baton agent --socket /run/baton/agent.sock --group": {
		instead: []string{"www-data", "$(id -gn)", "/run/baton/agent.sock --mode 0666", "/run/baton/third.sock --mode 0666"},
		before:  "echo \"uid:$(id -u)  -  =lock,list\" >/etc/baton/roles; chmod 600 /etc/baton/roles",
		goesOn: map[string]string{
			"baton agent --socket /run/baton/agent.sock --group": "[ -S /run/baton/agent.sock ]",
			"baton agent --socket $XDG_RUNTIME_DIR/baton.sock":   "[ -S $XDG_RUNTIME_DIR/baton.sock ]",
			"baton agent --socket /run/baton/agent.sock --mode":  "[ -S /run/baton/third.sock ]",
		},
		prints: []string{`{"id":1,"ok":`},
	},
	"docs/reference/cli.md: baton elect scheduler": {
		instead:  []string{"baton elect --observe", "timeout 2 baton elect --observe"},
		programs: map[string]string{"./scheduler": "exec sleep 600", "./api-server": "exec sleep 600"},
		goesOn:   map[string]string{"baton elect scheduler": "baton ls | grep -q scheduler", "baton elect --value": "baton show api | grep -q :8080"},
		after:    "hostname",
	},
	"docs/reference/cli.md: baton limit --rate 5/s --rate 1000/day": {
		instead: []string{"curl …", "./fetch"},
		prints:  []string{"./send-mail.sh ran\n./fetch ran\n"},
	},
	"docs/reference/cli.md: baton limit check -o json": {
		before: rulesFile,
		prints: []string{"\"api\"\n"},
	},
	"docs/reference/cli.md: baton limit ls -n 0": {
		before: "baton limit --rate 5/1m -a token-bucket -n 5 tokens/full; baton limit --rate 100/1m 'minute/{tenant/7}'",
		prints: []string{"tokens/full\n"},
	},
	"docs/reference/cli.md: baton limit overrides -o json": {
		before: "baton limit set --rate 500/1m --for 2h api/acme",
		prints: []string{"api/acme\n"},
	},
	"docs/reference/cli.md: baton limit set --rate 5000": {
		after:  "baton limit overrides",
		prints: []string{"api/acme …\n", "orders/{acme} …\n"},
	},
	"docs/reference/cli.md: baton limit simulate --rate 20/1m": {
		before:  rulesFile + accessLog + "cp access.log /var/log/nginx/access.log\nprintf '%s\\n' 'domain: edge' 'descriptors:' '  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 3}}' >edge.yaml",
		instead: []string{"--rules rules.yaml --domain", "--rules edge.yaml --domain"},
		after:   "grep -c '<svg' limits.svg",
	},
	"docs/reference/cli.md: baton limit top --of 100 minute/": {
		before: "baton limit --rate 100/1m -n 40 'minute/{tenant/7}'; baton limit --rate 10/1m -a token-bucket tokens/x",
		prints: []string{"minute/{tenant/7} …", "tokens/x …"},
	},
	"docs/reference/cli.md: baton limit unset --name": {
		before: "baton limit set --rate 500/1m --for 2h api/acme; baton limit set --rate 5000 --for 24h --name orders acme",
		after:  "baton limit overrides",
		prints: []string{"baton: no limit is overridden\n"},
	},
	"docs/reference/cli.md: BATON_HANDLE=$(baton lock": {
		after:  "baton show deploy/web",
		prints: []string{"./step-one ran\n", "./step-two ran\n", "lock \"deploy/web\" is free\n"},
	},
	"docs/reference/cli.md: baton once --final": {
		before: "HOST=web1",
		prints: []string{"./migrate.sh ran\n", "./report.sh ran\n", "./redeem.sh ran\n"},
	},
	"docs/reference/cli.md: baton once ls -o json": {
		before: "for i in 1 2 3 4; do baton once migrate/2026-07 -- false || :; done",
		prints: []string{"migrate/2026-07\n"},
	},
	"docs/reference/cli.md: baton renew --ttl 60s - <": {
		instead: []string{"BATON_HANDLE=…", "BATON_HANDLE=$(cat handle-file)"},
		before:  "baton lock k >handle-file",
	},
	"docs/reference/cli.md: baton run -w 30s": {
		programs: map[string]string{
			"ansible-playbook": `echo "ansible-playbook $*"`, "ffmpeg": `echo "ffmpeg $*"`, "make": `echo make`, "curl": `echo "curl $*"`,
		},
		prints: []string{"./report.sh ran\n./report.sh ran\n./poll.sh ran\nansible-playbook web.yml\nffmpeg …\nmake\ncurl -H X-Token: …\n"},
	},
	"docs/reference/cli.md: baton serve --listen": {
		instead: []string{"baton serve\n", "baton serve --listen 127.0.0.1:7420\n", "--listen :7420", "--listen 127.0.0.1:8080"},
		before: "head -c 32 /dev/urandom | base64 >/etc/baton/secret; echo 'team-a  sha256:" + hash + "  a/=lock' >/etc/baton/roles; chmod 600 /etc/baton/*\n" +
			"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1 -keyout /etc/baton/tls.key -out /etc/baton/tls.crt 2>/dev/null; chmod 600 /etc/baton/tls.key",
		goesOn: map[string]string{"baton serve\n": "curl -sf http://127.0.0.1:7420/readyz", "baton serve --listen": "curl -skf https://127.0.0.1:8080/readyz"},
	},
	"docs/reference/cli.md: baton token check": {
		before:   "echo 'team-a  sha256:" + hash + "  a/=lock' >/etc/baton/roles; chmod 600 /etc/baton/roles",
		programs: map[string]string{"systemctl": `echo "systemctl $*"`},
		prints:   []string{"systemctl reload baton-serve\n"},
	},
	"docs/reference/cli.md: baton token new -o json": {},
	"docs/reference/cli.md: baton unlock \"$HANDLE\"": {
		before: "HANDLE=$(baton lock a); baton lock b >handle-file",
		after:  "baton show a; baton show b",
		prints: []string{"lock \"a\" is free\n", "lock \"b\" is free\n"},
	},
	"docs/reference/cli.md: baton ask -w 2m": {
		programs: map[string]string{"./nightly.sh": "exec sleep 600"},
		goesOn:   map[string]string{"baton run --on-ask TERM": "! baton show nightly | grep -q 'is free'"},
		after:    "baton ask nightly 'deploy 8'; baton show nightly",
		prints:   []string{"lock \"nightly\" is free\n"},
	},
	"docs/reference/cli.md: baton break order:42": {
		before: "baton lock order:42",
		exits:  map[string]int{"baton break order:42": 64}, // there is no terminal
		after:  "baton show order:42",
		prints: []string{"lock \"order:42\" is free\n"},
	},
	"docs/reference/cli.md: baton ls order:": {
		before: "baton lock order:42",
		prints: []string{"order:42 …"},
	},
	"docs/reference/cli.md: baton show order:42": {
		before: "baton lock order:42",
		prints: []string{"held  …  exclusive  …\n"},
	},
	"docs/reference/cli.md: baton watch --for": {
		instead: []string{"--for 1m", "--for 2s"},
		goesOn:  map[string]string{"baton watch\n": "true"},
	},
	"docs/reference/cli.md: baton doctor redis": {
		exits: map[string]int{"baton doctor redis": 1},
	},
	"docs/reference/cli.md: baton schema apply": {
		instead: []string{"postgres://owner@db1/app?password-env=PW", "postgres://db1/locks"},
		after:   "baton -b postgres://db1/locks ls",
	},
	"docs/reference/cli.md: baton schema print": {
		instead: []string{"psql app", "psql -q postgres://db1/locks"},
		after:   "baton -b postgres://db1/locks ls",
	},
	"docs/reference/cli.md: baton lab run setnx-expire\nbaton": {},
	"docs/reference/cli.md: baton lab list": {
		instead: []string{"baton lab serve", "baton lab serve --listen 127.0.0.1:7390"},
		goesOn:  map[string]string{"baton lab serve": "curl -s http://127.0.0.1:7390"},
	},
	"docs/reference/cli.md: baton lab draw": {
		before: "mkdir records; cp REPO/docs/lab/setnx-expire.json records/",
		after:  "ls pictures",
		prints: []string{"setnx-expire…svg\n"},
	},
	"docs/reference/cli.md: baton lab serve --listen": {
		instead: []string{"baton lab serve\n", "baton lab serve --listen 127.0.0.1:7420\n"},
		goesOn:  map[string]string{"baton lab serve\n": "curl -s http://127.0.0.1:7420", "baton lab serve --listen": "curl -s http://127.0.0.1:7390"},
	},
	"docs/reference/cli.md: source <(baton": {
		before: "fpath=(. .); mkdir -p ~/.config/fish/completions",
		after:  "complete -p baton; grep -c . _baton ~/.config/fish/completions/baton.fish",
		prints: []string{"complete … baton\n"},
	},
}

const (
	verifies  = "its verdict needs a machine that does nothing else, and each of its faults takes half a minute; testdata/script/verify.txtar of cmd/baton runs it for seconds"
	measures  = "what it measures needs a machine that does nothing else; testdata/script/bench.txtar of cmd/baton runs it for seconds"
	rulesFile = "printf '%s\\n' 'rules:' '  - {name: api, requests: 3, period: 1m}' >rules.yaml\n"
	accessLog = `for i in 1 2 3 4 5; do echo '192.0.2.1 - - [26/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-"'; done >access.log` + "\n"
	hash      = "65c74c15a686187bb6bbf9958f494fc6b80068034a659a9ad44991b08c58f2d2"
)
