package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Child is a command that was started. Its methods are safe for concurrent use.
type Child struct {
	pid  int // also the number of the console's process group
	job  windows.Handle
	done chan struct{}
	code uint32 // after done
}

// Start starts the command. If the error is not nil, it did not run.
func Start(c Command) (*Child, error) {
	job, err := newJob()
	if err != nil {
		return nil, err
	}
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env:   c.Env,
		Files: []*os.File{c.Stdin, c.Stdout, c.Stderr},
		// Suspended until it is in the job, so that it starts nothing outside.
		Sys: &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_SUSPENDED},
	})
	if err != nil {
		_ = windows.CloseHandle(job)
		return nil, err
	}
	if err := enter(job, process); err != nil {
		_ = process.Kill()
		_, _ = process.Wait()
		_ = windows.CloseHandle(job)
		return nil, err
	}
	child := &Child{pid: process.Pid, job: job, done: make(chan struct{})}
	go func() {
		defer close(child.done)
		if state, err := process.Wait(); err == nil {
			child.code = uint32(state.ExitCode())
		} else {
			child.code = 255
		}
	}()
	return child, nil
}

// newJob makes a job whose processes the kernel ends when its last handle is closed. The
// only handle is ours, so they end with this process, in whatever way.
func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("supervise: a job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		_ = windows.CloseHandle(job)
		return 0, fmt.Errorf("supervise: the limits of a job object: %w", err)
	}
	return job, nil
}

// enter puts a suspended process into the job, and lets it run.
func enter(job windows.Handle, process *os.Process) error {
	var err error
	if with := process.WithHandle(func(handle uintptr) {
		err = windows.AssignProcessToJobObject(job, windows.Handle(handle))
	}); with != nil {
		err = with
	}
	if err == nil {
		err = resume(uint32(process.Pid))
	}
	if err != nil {
		return fmt.Errorf("supervise: a process in a job object: %w", err)
	}
	return nil
}

// resume lets the one thread of a suspended process run.
func resume(pid uint32) error {
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(all)
	entry := windows.ThreadEntry32{}
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Thread32First(all, &entry); err == nil; err = windows.Thread32Next(all, &entry) {
		if entry.OwnerProcessID != pid {
			continue
		}
		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, entry.ThreadID)
		if err != nil {
			return err
		}
		defer windows.CloseHandle(thread)
		_, err = windows.ResumeThread(thread)
		return err
	}
	if errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return errors.New("it has no thread")
	}
	return err
}

// Done is closed when the command has ended. Processes that it started may still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// HungUp is never closed: a console is not taken from a command.
func (c *Child) HungUp() <-chan struct{} { return nil }

// Ended reports whether the command has ended.
func (c *Child) Ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Code is the exit code as a byte: 130 for a command that Ctrl-C or Ctrl-Break has ended,
// and 255 for a code that does not fit. It is valid when Done is closed.
func (c *Child) Code() int {
	switch {
	case c.code == uint32(windows.STATUS_CONTROL_C_EXIT):
		return 128 + int(syscall.SIGINT)
	case c.code > 255:
		return 255
	}
	return int(c.code)
}

// KilledBy is 0: no process ends by a signal here.
func (c *Child) KilledBy() (sig syscall.Signal, terminal bool) { return 0, false }

// Signal passes on a signal as Ctrl-Break.
func (c *Child) Signal(os.Signal) {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(c.pid))
}

// Stop ends the command and what it has started: by Ctrl-Break, and after the grace by
// ending the job. It returns when nothing is left, or when that cannot be achieved: see
// Outcome. Without grace it only ends the job.
func (c *Child) Stop(grace time.Duration) Outcome {
	if c.Gone() {
		return Outcome{}
	}
	if grace > 0 {
		c.Signal(syscall.SIGTERM)
		if c.goneWithin(grace) {
			return Outcome{}
		}
	}
	_ = windows.TerminateJobObject(c.job, 128+uint32(syscall.SIGKILL))
	return Outcome{Killed: true, Left: !c.goneWithin(afterKill)}
}

// goneWithin waits until nothing is left or the limit is over.
func (c *Child) goneWithin(limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !c.Gone() {
		select {
		case <-look.C:
		case <-deadline.C:
			return c.Gone()
		}
	}
	return true
}

// Gone reports whether nothing of the command and of what it started is left.
func (c *Child) Gone() bool { return c.Ended() && c.active() == 0 }

// active is how many processes of the job run. A job that cannot be asked has none: its
// handle is ours and is never closed before this process ends.
func (c *Child) active() uint32 {
	var told struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		TotalUserTime, TotalKernelTime, ThisPeriodTotalUserTime, ThisPeriodTotalKernelTime int64
		TotalPageFaultCount, TotalProcesses, ActiveProcesses, TotalTerminatedProcesses     uint32
	}
	if windows.QueryInformationJobObject(c.job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&told)), uint32(unsafe.Sizeof(told)), nil) != nil {
		return 0
	}
	return told.ActiveProcesses
}
