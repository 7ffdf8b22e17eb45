package testserver

// Python returns the path of python3. If it is not installed, the test is skipped, or
// fails if BATON_REQUIRE_SERVERS is 1.
func Python(t TB) string {
	t.Helper()
	return require(t, "python3", "python3-minimal")
}

// Bash returns the path of bash, with socat beside it, as Python does.
func Bash(t TB) string {
	t.Helper()
	require(t, "socat", "socat")
	return require(t, "bash", "bash")
}

// Protoc returns the path of protoc, as Python does.
func Protoc(t TB) string {
	t.Helper()
	return require(t, "protoc", "protobuf-compiler")
}

// Curl returns the path of curl, as Python does.
func Curl(t TB) string {
	t.Helper()
	return require(t, "curl", "curl")
}

// Nginx returns the path of nginx, as Python does.
func Nginx(t TB) string {
	t.Helper()
	return require(t, "nginx", "nginx-light")
}

// Caddy returns the path of caddy, as Python does.
func Caddy(t TB) string {
	t.Helper()
	return require(t, "caddy", "caddy")
}

// Node returns the path of node, as Python does.
func Node(t TB) string {
	t.Helper()
	return require(t, "node", "nodejs")
}

// PHP returns the path of php, as Python does.
func PHP(t TB) string {
	t.Helper()
	return require(t, "php", "php-cli")
}

// Java returns the path of java, with javac beside it, as Python does.
func Java(t TB) string {
	t.Helper()
	require(t, "javac", "openjdk-17-jdk-headless")
	return require(t, "java", "openjdk-17-jdk-headless")
}
