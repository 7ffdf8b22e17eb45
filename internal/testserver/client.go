package testserver

// Python returns the path of python3.
func Python(t TB) string {
	t.Helper()
	return require(t, "python3", "python3-minimal")
}

// Bash returns the path of bash, with socat beside it.
func Bash(t TB) string {
	t.Helper()
	require(t, "socat", "socat")
	return require(t, "bash", "bash")
}

// Curl returns the path of curl.
func Curl(t TB) string {
	t.Helper()
	return require(t, "curl", "curl")
}

// Node returns the path of node.
func Node(t TB) string {
	t.Helper()
	return require(t, "node", "nodejs")
}

// PHP returns the path of php, for a long test.
func PHP(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "php", "php-cli")
}

// Java returns the path of java, with javac beside it, for a long test.
func Java(t TB) string {
	t.Helper()
	Long(t)
	require(t, "javac", "openjdk-17-jdk-headless")
	return require(t, "java", "openjdk-17-jdk-headless")
}

// Protoc returns the path of protoc, for a long test.
func Protoc(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "protoc", "protobuf-compiler")
}

// Nginx returns the path of nginx, for a long test.
func Nginx(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "nginx", "nginx-light")
}

// Caddy returns the path of caddy, for a long test.
func Caddy(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "caddy", "caddy")
}

// Npm returns the path of npm, with node beside it, for a long test.
func Npm(t TB) string {
	t.Helper()
	Long(t)
	Node(t)
	return require(t, "npm", "npm")
}

// Chromium returns the path of the browser, for a long test.
func Chromium(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "chromium", "chromium")
}
