# The recipes of this repository. Each is one command a person could type.

# Flags of the benchmark of rivals: make bench BENCH="-h"
BENCH ?=

# Further flags of go test: make test TEST=-count=1
TEST ?=

# Flags of the verification: make verify VERIFY="-h"
VERIFY ?=

# Flags of the measurement of scale: make scale SCALE="-h"
SCALE ?=

# Flags of the search for leaks: make soak SOAK="-h"
SOAK ?=

# How many texts make fuzz has Go's fuzzing find for each fuzzer, or for how long: make fuzz FUZZ=1m
FUZZ ?= 100000x

# Flags of goreleaser: make release RELEASE=--snapshot
RELEASE ?=

# The linters and gotestsum, at the versions of internal/tools/go.mod.
tool = go tool

# What shares memory between goroutines is tested with the race detector: the core in
# make test, the stores as well in make test-long.
CORE = . ./internal/batch ./ratelimit/... ./once/... ./election/... ./agent/... ./server/...

# gotestsum runs the packages $(2) with the flags $(3). Up to five failures are repeated
# alone, and listed at the end. Under nohup a child would ignore HUP.
# With -trimpath all clones share one build cache.
sum = BATON_REQUIRE_SERVERS=1 GOFLAGS="$$GOFLAGS -trimpath" env --default-signal=HUP $(tool) gotestsum --format pkgname --hide-summary skipped \
	--rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report .test/$(1).repeated --jsonfile .test/$(1).json \
	--packages "$(2)" -- -vet=off -p 3 -parallel 4 -timeout 15m $(3) $(TEST)

# What runs on MySQL as well as on MariaDB: in make test the contract, records, limits,
# transactions, plans and some faults; in make test-long all tests of the store and all faults.
on_mysql = BATON_SERVER_MARIADB=$(CURDIR)/.servers/mysql/usr/sbin/mysqld
MYSQL_TESTS = ^Test(Contract|Records|Limits|InTx.*|.*Cut.*|BlackHole|NoStatementScans|TheAddressLeadsToAnotherServer)$$|^TestMatrix$$/^mariadb$$

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/baton, a static binary, as a release has it but for symbols
	GOWORK=off CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -o bin/baton ./cmd/baton

.PHONY: test
test: servers ## Install what is missing, and test Baton and the laboratory on every server
	@rm -rf .test; mkdir .test; status=0; \
	$(call sum,rest,$(filter-out %/lab/rivals %/lab/scale $(shell go list $(CORE)),$(shell go list ./store/... ./cmd/... ./... ./lab/...)),) || status=1; \
	$(call sum,core,$(CORE),-race) || status=1; \
	$(on_mysql) $(call sum,mysql,./store/mysqlstore ./lab/verify,-run '$(MYSQL_TESTS)') || status=1; \
	cat .test/*.repeated 2>/dev/null; exit $$status

.PHONY: test-long
test-long: ## Test all modules with all faults, browsers, languages and neighbours
	@.ci/install long; rm -rf .test; mkdir .test; status=0; export BATON_LONG=1; \
	$(call sum,long-rest,$(filter-out $(shell go list $(CORE) ./store/...),$(shell go list ./cmd/... ./interop/... work)),-p 2 -timeout 60m) || status=1; \
	$(call sum,long-core,$(CORE) ./store/...,-race -p 2 -timeout 60m) || status=1; \
	$(on_mysql) $(call sum,long-mysql,./store/mysqlstore,) || status=1; \
	$(on_mysql) $(call sum,long-mysql-faults,./internal/faulttest ./lab/verify,-run '^Test(LockedOut|ServerCrash|TenThousandWaiters)$$/^mysql$$|^TestMatrix$$/^all$$/^mariadb$$') || status=1; \
	cat .test/*.repeated 2>/dev/null; exit $$status

.PHONY: test-versions
test-versions: ## Try each store's contract on the newest servers of Debian, and write their table in docs/compatibility.md
	@.ci/versions

.PHONY: mutate
mutate: ## Take the rules of the lock's core out one by one, and see that its tests notice
	go test -run '^TestMutations$$' -mutate -count=1 -timeout 15m -v ./internal/acquire

.PHONY: lint
lint: ## Check the format and run go vet and staticcheck on all modules
	@unformatted=$$($(tool) gofumpt -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt does it):"; echo "$$unformatted"; exit 1; \
	fi
	go vet work
	$(tool) staticcheck work

.PHONY: fmt
fmt: ## Format all Go files
	$(tool) gofumpt -l -w .

.PHONY: bench
bench: ## Measure Baton beside its rivals; flags by BENCH="…"
	go run ./lab/rivals $(BENCH)

.PHONY: comparison
comparison: servers ## Measure all stores side by side and write lab/results/comparison.json and its pages
	go run ./lab/comparison

.PHONY: scale
scale: servers ## Measure how cost grows with leases, processes and waiters, and write lab/results/scale.json and lab/results/scale.md
	go run ./lab/cmd/baton-lab scale $(SCALE)

.PHONY: verify
verify: servers ## Try to break every store for two hours, go on where it ended, and write lab/results/verification.md
	go test ./lab/verify -run Planted -planted -count=1 -timeout 20m # what finds nothing must have found these
	go run ./lab/verify/campaign $(VERIFY)

.PHONY: soak
soak: servers ## Put a steady load on every store for half an hour, look for leaks, and write lab/results/soak.md
	go run ./lab/verify/soak $(SOAK)

.PHONY: fuzz
fuzz: ## Fuzz what strangers send: 100 000 texts that Go's fuzzing finds, of parsers 100 texts near each; FUZZ=1m for a minute each
	@set -e; grep -rEno '^func Fuzz[A-Za-z]+' --include=*_test.go agent server internal/roles ratelimit open guard | \
	sed -E 's|/[^/]*:[0-9]+:func | |' | while read -r dir name; do \
		echo "== $$dir $$name"; \
		go test ./$$dir -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ); \
	done

.PHONY: clients
clients: servers ## Try the clients in all languages at length: 30 000 increments of a file on each store
	go test ./clients -increments 30000 -count=1 -timeout 40m

.PHONY: servers
servers: ## Install the servers that the tests need (Debian, as root)
	@.ci/install

.PHONY: release
release: ## Build what a release has into dist, and try it: the command for all platforms, .deb, checksums, and a container; RELEASE=--snapshot without a tag
	go run github.com/goreleaser/goreleaser/v2@v2.15.1 release --clean --skip=publish $(RELEASE)
	BATON_LONG=1 go test -C interop ./debian -count=1 -v
	@if docker info >/dev/null 2>&1; then \
		docker build -q -t baton -f Containerfile . && docker run --rm baton version; \
	else \
		echo "NOT BUILT: the container image, because no docker answers here; elsewhere: docker build -t baton -f Containerfile ."; \
	fi

.PHONY: api
api: ## Show what the exported names have lost and gained since the last release, and which version that asks for
	GOWORK=off go run golang.org/x/exp/cmd/gorelease@v0.0.0-20261113113407-e3970619a1a4

.PHONY: site
site: ## Build the site from docs/ into dist/site (needs node 20 and npm)
	rm -rf .site/docs && mkdir -p .site && cp -R docs/site/. .site/ && cp -R docs .site/docs && rm -r .site/docs/site
	go run ./cmd/baton reference > .site/docs/reference/cli.md
	cd .site && npm ci --no-audit --no-fund --prefer-offline && npm run build

.PHONY: zh
zh: ## List the Chinese pages that are older than their English page
	@for zh in *.zh.md $$(find docs/zh -name '*.md' ! -path docs/zh/lab.md | sort); do \
		english=$$(echo $$zh | sed 's|/zh/|/|; s|\.zh\.md|.md|'); \
		commit=$$(sed -n 's/.*translated at \([0-9a-f]*\).*/\1/p' $$zh | head -n 1); \
		changes=$$(git log --oneline $${commit:+$$commit..} -- $$english | wc -l); \
		[ $$changes -eq 0 ] || echo "$$zh: $$changes commits since its translation at $${commit:-no commit}"; \
	done

.PHONY: lab
lab: servers ## Make all experiments of the laboratory, and write docs/lab.md and its pictures
	go run ./cmd/XX
	go test ./lab/questions -run '^TestPageIsFresh$$' -count=1 -args -update

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .release .site
