package questions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/open"
)

// idempotency are the questions about operations that must succeed once.
var idempotency = []*lab.Question{
	{
		Name:  "number-and-timestamp",
		Topic: lab.Once,
		Ask:   text("Is business number plus timestamp a good idempotency key?", "用“业务单号 + 时间戳”做幂等键，行不行？"),
		Answer: [3]lab.Text{
			text("Not if the timestamp is that of the request: a retry comes later, so it has another timestamp, another key, and runs a second time.", "如果取的是请求时间，就不行：重试来得更晚，时间戳变了，键就变了，于是又执行一次。"),
			text("The key has to stay the same through all retries: the number of the order alone.", "幂等键在所有重试中必须保持不变：只用订单号。"),
			text("If one order may be redeemed several times, the client makes a number for each, before the first try, and keeps it.", "同一订单允许多次操作时，客户端在第一次尝试之前为每次操作生成一个流水号，重试时沿用。"),
		},
		Tests: []string{"once: TestAnOrderIsRedeemedOnce"},
		Run:   numberAndTimestamp,
	},
	{
		Name:  "crash-half-way",
		Topic: lab.Once,
		Ask:   text("Mark it as done before the work, or after it: which is right if the program crashes?", "先记“已处理”再执行，还是先执行再记？崩溃了怎么办？"),
		Answer: [3]lab.Text{
			text("Neither, unless mark and work commit in one transaction: marked before, the work is lost if the program crashes in between; marked after, it is done twice.", "都不对，除非标记和业务在同一个事务里提交：先记，中途崩溃，这件事就丢了；后记，中途崩溃，就会执行两次。"),
			text("baton once notes that an attempt begins, and only a success as done: after a crash the next caller runs it again.", "baton once 先记录“开始尝试”，成功了才记为完成：崩溃之后，下一个调用者再执行。"),
			text("That attempt has a higher token and knows that it is the second, so it can look for what the first has done.", "新的尝试带着更大的栅栏令牌，也知道自己是第二次，于是可以先查上一次做到了哪里。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"once: TestStoppedAnywhere"},
		Run:   crashHalfWay,
	},
	{
		Name:  "lost-result",
		Topic: lab.Once,
		Ask:   text("The answer was lost, and the client tries again: what should the server say?", "响应丢了，客户端重试：服务端该返回什么？"),
		Answer: [3]lab.Text{
			text("The same result as before: an error such as \"duplicate request\" leaves the client without its receipt.", "应返回和第一次相同的结果：只回“重复请求”，客户端就永远拿不到回执。"),
			text("So it is not enough to remember that a request was there; its result has to be kept.", "所以只记住“来过”不够，还要保存结果。"),
			text("Baton's once keeps the result for 24 hours, or as long as you say, and gives it to every later caller, also to one that comes while the first still runs.", "Baton 的 once 默认把结果保存 24 小时（可以配置），之后的调用者都拿到同一份；第一次还没执行完就来的，也会等到同一份。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"once: TestRunsOnceAndAnswersEverybody"},
		Run:   lostResult,
	},
}

// runnerAt opens a store and makes a once.Runner over it.
func runnerAt(ctx context.Context, r *lab.Run, url string) (*once.Runner, error) {
	store, err := open.Store(ctx, url)
	if err != nil {
		return nil, err
	}
	r.Site.Cleanup(func() { _ = store.Close() })
	return once.New(store, once.Config{})
}

func numberAndTimestamp(ctx context.Context, r *lab.Run) error {
	folder := r.Site.Folder()
	runner, err := runnerAt(ctx, r, "sqlite:"+filepath.Join(folder, "locks.db"))
	if err != nil {
		return err
	}
	client := r.Lane(text("client", "客户端"))
	timed := r.Lane(text("order number + time", "单号 + 时间戳"))
	plain := r.Lane(text("order number alone", "只用单号"))
	t := r.Table(text("key of", "幂等键"), text("first try", "第一次"), text("retry", "重试"), text("points redeemed", "扣掉的积分"))
	var points [2]int
	redeem := func(which int, lane *lab.Lane) func(context.Context, once.Attempt) ([]byte, error) {
		return func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			lane.Begin(lab.Works, lab.Text{})
			defer lane.End()
			points[which] += 100
			return []byte("receipt " + strconv.Itoa(points[which]/100)), wait(ctx, 150*time.Millisecond)
		}
	}
	r.Start()
	var keys [2][2]string
	var receipts [2][2]string
	for try := range 2 {
		client.Mark(lab.Noted, [...]lab.Text{text("redeems order 4711; the answer is lost", "兑换订单 4711；响应丢了"), text("tries again", "重试")}[try])
		now := time.Now().Unix()
		keys[0][try], keys[1][try] = fmt.Sprintf("redeem/4711-%d", now), "redeem/4711"
		for which, lane := range []*lab.Lane{timed, plain} {
			before := points[which]
			receipt, err := runner.Do(ctx, keys[which][try], redeem(which, lane))
			if err != nil {
				return err
			}
			receipts[which][try] = string(receipt)
			switch {
			case points[which] == before:
				lane.Mark(lab.Accepted, text("done before: the same receipt", "已完成：同一张回执"))
			case try == 0:
				lane.Mark(lab.Accepted, text("100 points redeemed", "扣 100 积分"))
			default:
				lane.Mark(lab.Harm, text("another key: 100 points again", "键变了：又扣 100 积分"))
			}
		}
		for try == 0 && time.Now().Unix() == now { // the retry must be in another second
			if err := wait(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	t.Add(text("order number + time", "单号 + 时间戳"), keys[0][0], keys[0][1], points[0])
	t.Add(text("order number alone", "只用单号"), keys[1][0], keys[1][1], points[1])
	if points != [2]int{200, 100} || receipts[1][0] != receipts[1][1] {
		return unexpected("points %v, receipts %q", points, receipts)
	}
	r.Say("With the time in the key the retry redeemed %d points in all; with the order number alone %d, and the retry got the receipt of the first try.",
		"键里带时间戳，重试之后一共扣了 %d 积分；只用单号扣 %d 积分，重试拿到的是第一次的回执。", points[0], points[1])
	return nil
}

func crashHalfWay(ctx context.Context, r *lab.Run) error {
	server := startRedis(r)
	folder := r.Site.Folder()
	before := r.Lane(text("marked before the work", "先记后做"))
	after := r.Lane(text("marked after the work", "先做后记"))
	first := r.Lane(text("baton once: attempt 1", "baton once 第 1 次"))
	second := r.Lane(text("baton once: attempt 2", "baton once 第 2 次"))

	// An operation that ran twice is in the ledger twice. The command looks for the effect of
	// an earlier attempt only if there was one.
	ledger := filepath.Join(folder, "ledger")
	const command = `if [ "$BATON_ATTEMPT" -gt 1 ] && grep -q 4711 "$0"; then echo "attempt $BATON_ATTEMPT found it done";
		else echo 4711 >>"$0"; fi; [ "$BATON_ATTEMPT" -gt 1 ] || exec sleep 30`
	run := func() (output *bytes.Buffer, kill func(), ended func() error, err error) {
		output = new(bytes.Buffer)
		cmd, err := r.Baton(ctx, "-q", "-b", "redis://"+server.Addr, "once", "--ttl", "2s", "redeem/4711", "--", "sh", "-c", command, ledger)
		if err != nil {
			return nil, nil, nil, err
		}
		cmd.Stdout, cmd.Stderr = output, output
		return output, func() { _ = cmd.Process.Kill() }, cmd.Wait, cmd.Start()
	}
	if _, err := r.Baton(ctx); err != nil { // the build of the command, if any, is no part of the experiment
		return err
	}
	r.Start()

	before.Begin(lab.Works, lab.Text{})
	if _, err := server.Do("SET", "before/4711", "done", "NX"); err != nil {
		return err
	}
	after.Begin(lab.Works, lab.Text{})
	if _, err := server.Do("INCRBY", "redeemed after/4711", "100"); err != nil {
		return err
	}
	output, kill, ended, err := run()
	if err != nil {
		return err
	}
	first.Begin(lab.Works, lab.Text{})
	for lines := 0; lines == 0; lines = count(ledger) {
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%w: baton once wrote %q", err, output)
		}
	}
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	kill()
	_ = ended()
	for _, lane := range []*lab.Lane{before, after, first} {
		lane.End()
		lane.Mark(lab.Crashed, text("crashes half-way", "执行到一半崩溃"))
	}

	// The next callers.
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	answer, err := server.Do("SET", "before/4711", "done", "NX")
	if err != nil {
		return err
	}
	lost := answer != "OK" // the write is there already, so no work is left
	before.Mark(lab.Harm, text("\"done\": the work is lost", "“已处理”：这件事丢了"))
	answer, err = server.Do("GET", "after/4711")
	if err != nil {
		return err
	}
	if answer == "" {
		after.Begin(lab.Works, lab.Text{})
		if answer, err = server.Do("INCRBY", "redeemed after/4711", "100"); err != nil {
			return err
		}
		if _, err := server.Do("SET", "after/4711", "done"); err != nil {
			return err
		}
		after.Mark(lab.Harm, text("done a second time", "又执行了一次"))
		after.End()
	}
	second.Begin(lab.Waits, lab.Text{})
	output, _, ended, err = run()
	if err != nil {
		return err
	}
	if err := ended(); err != nil {
		return fmt.Errorf("baton once: %w: %s", err, output)
	}
	second.Mark(lab.Accepted, text("a higher token; finds the work done", "令牌更大；发现已做过"))
	second.End()

	show, err := r.Baton(ctx, "-b", "redis://"+server.Addr, "once", "show", "redeem/4711", "-o", "json")
	if err != nil {
		return err
	}
	shown, err := show.Output()
	if err != nil {
		return fmt.Errorf("baton once show: %w", err)
	}
	var record struct {
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
	}
	if err := json.Unmarshal(shown, &record); err != nil {
		return err
	}
	found := strings.TrimSpace(output.String())
	t := r.Table(text("order of the steps", "步骤的顺序"), text("after the crash the next caller", "崩溃之后，下一个调用者"), text("the work was done", "实际执行"))
	t.Add(text("mark, work", "先记后做"), text("is told that it is done", "被告知已处理"), text("0 times", "0 次"))
	t.Add(text("work, mark", "先做后记"), text("does it again", "再执行一次"), text("2 times", "2 次"))
	t.Add("baton once", text("knows that it is attempt 2", "知道这是第 2 次尝试"), lab.Textf("%d time", "%d 次", count(ledger)))
	if !lost || answer != "200" || record.State != "done" || record.Attempts != 2 || count(ledger) != 1 || found != "attempt 2 found it done" {
		return unexpected("lost %v, redeemed %s, %+v, in the ledger %d times, %q", lost, answer, record, count(ledger), found)
	}
	r.Say("Marked before, the work was done 0 times; marked after, 2 times (%s points). baton once was killed with SIGKILL; its attempt %d found the work of the first one, and the ledger has it once.",
		"先记后做，执行了 0 次；先做后记，执行了 2 次（%s 积分）。baton once 被 SIGKILL 杀掉；第 %d 次尝试发现上一次已经做过，账本里只有一笔。", answer, record.Attempts)
	return nil
}

// count is the number of lines of a file, 0 if it does not exist.
func count(file string) int {
	b, _ := os.ReadFile(file)
	return bytes.Count(b, []byte("\n"))
}

func lostResult(ctx context.Context, r *lab.Run) error {
	redis := startRedis(r)
	runner, err := runnerAt(ctx, r, "redis://"+redis.Addr)
	if err != nil {
		return err
	}
	client := r.Lane(text("client", "客户端"))
	naive := r.Lane(text("remembers the request", "只记住“来过”"))
	batons := r.Lane(text("keeps the result (once)", "保存结果（once）"))
	var receipts [2]atomic.Int64 // by each server
	began := make(chan struct{}, 2)
	work := func(which int, lane *lab.Lane) (string, error) {
		lane.Begin(lab.Works, lab.Text{})
		defer lane.End()
		began <- struct{}{}
		return fmt.Sprintf("receipt %d", receipts[which].Add(1)), wait(ctx, 400*time.Millisecond)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /naive/{order}", func(w http.ResponseWriter, req *http.Request) {
		answer, err := redis.Do("SET", "seen/"+req.PathValue("order"), "1", "NX")
		if err != nil || answer != "OK" {
			http.Error(w, "duplicate request", http.StatusConflict)
			return
		}
		receipt, _ := work(0, naive)
		_, _ = io.WriteString(w, receipt)
	})
	mux.HandleFunc("POST /baton/{order}", func(w http.ResponseWriter, req *http.Request) {
		// The work continues after the client has hung up: hence not req.Context().
		receipt, err := once.Do(ctx, runner, "redeem/"+req.PathValue("order"), func(context.Context, once.Attempt) (string, error) { return work(1, batons) })
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, receipt)
	})
	address, err := serve(r, mux)
	if err != nil {
		return err
	}
	r.Start()

	// The client hangs up after 150 ms; its work still ends.
	for _, path := range []string{"/naive/4711", "/baton/4711"} {
		client.Mark(lab.Noted, lab.Text{})
		hasty, hangUp := context.WithCancel(ctx)
		go func() {
			select {
			case <-began:
				_ = wait(ctx, 150*time.Millisecond)
			case <-ctx.Done():
			}
			hangUp()
		}()
		if _, answer, err := post(hasty, address+path); !errors.Is(err, context.Canceled) {
			return unexpected("the first answer was not lost: %q, %v", answer, err)
		}
	}
	client.Mark(lab.Noted, text("no answer within 150 ms: tries again", "150 ms 内没等到响应：重试"))
	client.Begin(lab.Waits, lab.Text{})
	t := r.Table(text("server", "服务端"), text("the retry is answered", "重试得到的响应"), text("receipts made", "开出的回执"))
	type answered struct {
		code int
		text string
	}
	var second, third answered
	var refused answered
	if second.code, second.text, err = post(ctx, address+"/baton/4711"); err != nil { // while it still runs
		return err
	}
	batons.Mark(lab.Accepted, text("the receipt of the first request", "第一次请求的回执"))
	if third.code, third.text, err = post(ctx, address+"/baton/4711"); err != nil {
		return err
	}
	if refused.code, refused.text, err = post(ctx, address+"/naive/4711"); err != nil {
		return err
	}
	naive.Mark(lab.Harm, text("409 duplicate: no receipt", "409 重复请求：没有回执"))
	client.End()
	if err := wait(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	t.Add(text("remembers the request", "只记住“来过”"), fmt.Sprintf("%d %s", refused.code, refused.text), receipts[0].Load())
	t.Add(text("keeps the result (once)", "保存结果（once）"), fmt.Sprintf("%d %s", second.code, second.text), receipts[1].Load())
	if refused.code != http.StatusConflict || second.code != http.StatusOK || second != third || receipts[0].Load() != 1 || receipts[1].Load() != 1 {
		return unexpected("the retries got %v, %v and %v; %d and %d receipts were made", refused, second, third, receipts[0].Load(), receipts[1].Load())
	}
	r.Say("Both servers did the work once. The first answered the retry with \"%d %s\"; Baton gave it \"%s\", while the first attempt still ran and once more after it.",
		"两个服务端都只执行了一次。前者对重试回了“%d %s”；Baton 返回“%s”：第一次还没执行完时如此，执行完之后再问也如此。", refused.code, refused.text, second.text)
	return nil
}

// serve serves HTTP on this machine until the experiment ends.
func serve(r *lab.Run, h http.Handler) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	r.Site.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String(), nil
}

// post sends a request without a body, and reads the answer.
func post(ctx context.Context, url string) (code int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, strings.TrimSpace(string(b)), err
}
