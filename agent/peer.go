package agent

import "log/slog"

// A peer is the process at the other end of a connection, at the time when it connected.
type peer struct {
	pid int   // 0: not known
	uid int64 // -1: not known
}

// LogValue implements slog.LogValuer.
func (p peer) LogValue() slog.Value {
	if p.uid < 0 {
		return slog.StringValue("unknown")
	}
	return slog.GroupValue(slog.Int("pid", p.pid), slog.Int64("uid", p.uid))
}
