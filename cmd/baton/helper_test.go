//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// helper is the program that scripts run under locks.
func helper() {
	args := append(os.Args[1:], "", "", "", "")
	switch args[0] {
	case "exit": // with a code
		code, err := strconv.Atoi(args[1])
		failOn(err)
		os.Exit(code)
	case "kill": // itself, with a signal
		failOn(syscall.Kill(os.Getpid(), signals[args[1]]))
		<-time.After(time.Hour)
	case "env": // the variables of baton
		for _, e := range os.Environ() {
			if strings.HasPrefix(e, "BATON_") {
				fmt.Println(e)
			}
		}
	case "args": // of this process and of its parent
		fmt.Printf("%q\n", os.Args)
		parent, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
		failOn(err)
		fmt.Printf("%q\n", parent)
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		failOn(err)
	case "line": // the first of the input
		text, err := bufio.NewReader(os.Stdin).ReadString('\n')
		failOn(err)
		fmt.Printf("read %q\n", text)
	case "tty": // read from the terminal, when a file comes
		writePid(args[2])
		until(args[1])
		if args[3] == "deaf" {
			signal.Ignore(syscall.SIGHUP, syscall.SIGTERM)
		}
		tty, err := os.Open("/dev/tty")
		failOn(err)
		_, err = tty.Read(make([]byte, 1))
		failOn(err)
	case "hold": // until a signal or a file comes
		writePid(args[1])
		until(args[2])
	case "stubborn": // the same, but only KILL helps
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		writePid(args[1])
		until(args[2])
	case "rooted": // the same, as root through its file's set-user-ID bit
		failOn(syscall.Setuid(0))
		signal.Ignore(syscall.SIGTERM)
		writePid(args[1])
		until(args[2])
	case "trap": // write down all signals, end with 42 at TERM
		ch := make(chan os.Signal, 16)
		for _, s := range signals {
			signal.Notify(ch, s)
		}
		file, err := os.Create(args[1])
		failOn(err)
		fmt.Fprintln(file, "ready")
		for s := range ch {
			if s == syscall.SIGURG {
				continue
			}
			fmt.Fprintln(file, s)
			if s == syscall.SIGTERM {
				os.Exit(42)
			}
		}
	case "leave": // start a stubborn helper, leave it running, and end with 3
		child := exec.Command(self(), "stubborn", args[1])
		failOn(child.Start())
		until(args[1])
		os.Exit(3)
	case "wait-for": // start a stubborn helper, and wait for it for ever
		child := exec.Command(self(), "stubborn", args[1])
		failOn(child.Start())
		failOn(child.Wait())
	case "regroup": // the same, with that helper in a process group of its own, as timeout does
		child := exec.Command(self(), "stubborn", args[1])
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		failOn(child.Start())
		failOn(child.Wait())
	case "say": // the arguments, by turns to standard output and to standard error; the first is the exit code
		code, err := strconv.Atoi(args[1])
		failOn(err)
		for i, text := range args[2 : len(args)-4] {
			fmt.Fprintln([]*os.File{os.Stdout, os.Stderr}[i%2], text)
		}
		os.Exit(code)
	case "much": // write that many bytes to standard output, and a word to standard error
		n, err := strconv.Atoi(args[1])
		failOn(err)
		_, err = os.Stdout.WriteString(strings.Repeat("x", n))
		failOn(err)
		fmt.Fprintln(os.Stderr, "and done")
	case "background": // start a helper that keeps the output open and is in another group
		child := exec.Command(self(), "hold", args[1], args[2])
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		failOn(child.Start())
		until(args[1])
		fmt.Println("started")
	case "beat": // write down the time as often as possible; only KILL helps
		signal.Ignore(syscall.SIGTERM)
		file, err := os.Create(args[1])
		failOn(err)
		for range time.Tick(time.Millisecond) {
			fmt.Fprintln(file, time.Now().UnixNano())
		}
	case "page": // what the page of an agent answers: FILE with its address, PATH, BODY, Host
		text, err := os.ReadFile(args[1])
		failOn(err)
		at := regexp.MustCompile(`^(http://(\S+)/)#token=([A-Z2-7]{26})\n$`).FindStringSubmatch(string(text))
		r, err := http.NewRequest("POST", at[1]+args[2], strings.NewReader(args[3]))
		failOn(err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+at[3])
		switch host := args[4]; host {
		case "":
		case "nobody":
			r.Header.Del("Authorization")
		default:
			r.Host = host
		}
		answer, err := http.DefaultClient.Do(r)
		failOn(err)
		fmt.Println(answer.StatusCode)
		lines := bufio.NewScanner(answer.Body)
		for i := 0; i < 20 && lines.Scan(); i++ { // frames, until all that is known was sent
			fmt.Println(lines.Text())
			if strings.Contains(lines.Text(), `"read":true`) {
				break
			}
		}
	case "session": // with an agent: send the arguments as lines, and print what it says until the end
		conn, err := net.Dial("unix", args[1])
		failOn(err)
		for _, line := range args[2 : len(args)-4] {
			_, err := fmt.Fprintln(conn, line)
			failOn(err)
		}
		_, err = io.Copy(os.Stdout, conn)
		failOn(err)
	case "call": // a method of a server, with a body and perhaps an access token, and print the answer
		call(args[1], args[2], args[3], args[4])
	case "activate": // start an agent as systemd would, and print what it tells systemd
		activate(args[1])
	default:
		fmt.Fprintf(os.Stderr, "helper: what is %q?\n", args[0])
		os.Exit(99)
	}
}

// call calls a method of the server whose messages are in a file.
func call(file, method, body, token string) {
	text, err := os.ReadFile(file)
	failOn(err)
	url := regexp.MustCompile(`listens at (\S+)`).FindSubmatch(text)
	r, err := http.NewRequest(http.MethodPost, string(url[1])+"/"+method, strings.NewReader(body))
	failOn(err)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	failOn(err)
	defer res.Body.Close()
	fmt.Printf("%d ", res.StatusCode)
	_, err = io.Copy(os.Stdout, res.Body)
	failOn(err)
	fmt.Println()
}

// activate listens at a socket, and passes it on to an agent.
func activate(path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	failOn(err)
	socket, err := l.File()
	failOn(err)
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path + ".notify"})
	failOn(err)
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	agent := exec.Command("sh", "-c", "LISTEN_PID=$$ exec baton agent --systemd") // the number of the process is known to itself
	agent.Env = append(os.Environ(), "LISTEN_FDS=1", "NOTIFY_SOCKET="+path+".notify")
	agent.ExtraFiles = []*os.File{socket}
	agent.Stderr = os.Stderr
	failOn(agent.Start())
	go func() {
		for state := make([]byte, 1000); ; {
			n, err := told.Read(state)
			failOn(err)
			fmt.Printf("%s\n", state[:n])
		}
	}()
	go func() {
		<-terms
		failOn(agent.Process.Signal(syscall.SIGTERM))
	}()
	failOn(agent.Wait())
}

// writePid writes the file in one step: a process that finds it can read it.
func writePid(file string) {
	if file == "" {
		return
	}
	failOn(os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600))
	failOn(os.Rename(file+".new", file))
}

// until waits for a file to be there.
func until(file string) {
	if file == "" {
		<-time.After(time.Hour)
	}
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

func failOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(98)
	}
}

// self is this program, under the name that makes it a helper.
func self() string {
	path, err := os.Executable()
	failOn(err)
	return path
}
