# Distributed locks through the agent of this host ("baton agent"). Source it; needs socat.
#
#   baton_lock invoice/42 10000 || exit   # waits for 10 s; without a number as long as it takes
#   echo "$BATON_TOKEN"
#   baton_check 1000 && ./pay             # at least 1 s is left
#   baton_unlock
#
# One lock at a time. It is free when the shell ends, however that happens, also while a
# command of it runs on. exec is such an end, and so is the last command of bash -c, which
# bash runs as if by exec: end with baton_unlock. A lock is that of the shell that called
# baton_lock: ( … ), $( … ) and both sides of a pipe are other shells.

[ -n "${BASH_VERSION-}" ] || { echo "baton.sh needs bash" >&2 && exit 69; }

# Errors: 75 held, 79 lost, 69 anything else; BATON_ERROR says why, BATON_ANSWER is the agent's line.
baton_ask() { # request, without its id
	local sent=$SECONDS left
	BATON_ERROR= BATON_ANSWER=
	[[ -n ${BATON_IN-} ]] || { BATON_ERROR="no lock" && return 79; }
	[[ $BATON_SHELL == "$BASHPID" ]] || { BATON_ERROR="the lock is that of another shell" && return 69; }
	baton_write "{\"id\":$((++BATON_ID)),$1}"
	baton_read || BATON_ANSWER=
	if [[ $BATON_ANSWER != "{\"id\":$BATON_ID,"* ]]; then # the end, or an answer that was not read when it was due
		baton_end
		[[ $BATON_ANSWER == '{"ok":false,'* ]] || { BATON_ERROR="the agent has gone" && return 79; }
	fi
	left=${BATON_ANSWER#*'"remaining_ms":'} left=${left%%[^0-9]*}
	[[ -z $left ]] || BATON_UNTIL=$((sent + left / 1000 + 1))
	[[ $BATON_ANSWER != *'"ok":true'* ]] || return 0
	baton_said
	case $BATON_ANSWER in
	*'"error":"held"'*) return 75 ;;
	*'"error":"lost"'* | *'"error":"closing"'*) return 79 ;;
	*'"ok":false'*) return 69 ;;
	esac
	baton_end
	return 79
}

baton_write() { # line
	# If the agent has ended the session, writing is a SIGPIPE, or bash has unset
	# BATON_COPROC. The agent may have said why.
	local traps
	traps=$(trap -p PIPE)
	trap '' PIPE
	[[ -z ${BATON_COPROC[1]-} ]] || printf '%s\n' "$1" 2>/dev/null >&"${BATON_COPROC[1]}" || true
	eval "${traps:-trap - PIPE}"
}

# Reads the next answer. After 3 seconds of silence the agent is asked for a sign of life.
# After 3 more it hangs, unless what it told of the lock is not over yet.
baton_read() {
	local code silent= part
	BATON_ANSWER=
	while :; do
		code=0
		IFS= read -r -t 3 part <&"$BATON_IN" || code=$?
		BATON_ANSWER+=$part
		if [[ $code == 0 ]]; then
			[[ $BATON_ANSWER == '{"id":9007199254740991,"ok":true'* ]] || return 0
			BATON_ANSWER= silent=
		elif [[ $code -le 128 || -n $silent && $SECONDS -gt $BATON_UNTIL ]]; then
			return 1
		else
			[[ -n $silent ]] || baton_write '{"id":9007199254740991,"do":"ping"}'
			silent=1
		fi
	done
}

baton_said() { # the message of an answer is the error
	local message='"message":"(([^"\\]|\\.)*)"'
	BATON_ERROR=$BATON_ANSWER
	[[ $BATON_ANSWER =~ $message ]] || return 0
	BATON_ERROR=${BASH_REMATCH[1]//\\\"/\"} BATON_ERROR=${BATON_ERROR//\\\\/\\}
}

baton_lock() { # key [milliseconds to wait [milliseconds to hold at most]]
	local code=0 want socket=${BATON_AGENT:-/run/baton/agent.sock}
	BATON_ANSWER=
	[[ $1 != *[\"\\]* ]] || { BATON_ERROR='a key with " or \' && return 69; }
	[[ -z ${BATON_IN-} ]] || { BATON_ERROR="one lock at a time" && return 69; }
	type socat >/dev/null 2>&1 || { BATON_ERROR="socat is missing: install it, or set PATH" && return 69; }
	# The connection stays after the agent has ended the session (-t) until baton_end: the
	# agent keeps until then what baton_check was told.
	BATON_ID=0 BATON_UNTIL=0 BATON_SHELL=$BASHPID
	coproc BATON_COPROC { exec socat -t86400 STDIO,shut-close "UNIX-CONNECT:$socket" 2>/dev/null; }
	exec {BATON_IN}<&"${BATON_COPROC[0]}" # the output is not copied: children would inherit the copy, and keep the lock
	baton_read && [[ $BATON_ANSWER == *'"ok":true'* ]] || {
		baton_said
		[[ -n $BATON_ANSWER ]] || BATON_ERROR="no agent at $socket: start baton agent, or set BATON_AGENT"
		[[ -n $BATON_ANSWER || ! -e $socket || -w $socket ]] || BATON_ERROR="no right to $socket: see --group and --mode of the agent"
		baton_end && return 69
	}
	want="\"do\":\"lock\",\"key\":\"$1\"${2:+,\"wait_ms\":$2}${3:+,\"max_hold_ms\":$3}"
	baton_ask "$want" || { code=$? && baton_end && return $code; }
	BATON_TOKEN=${BATON_ANSWER#*'"token":"'} BATON_TOKEN=${BATON_TOKEN%%\"*}
	[[ $BATON_TOKEN =~ ^[0-9]+$ ]] || { BATON_ERROR="an answer without a token" && baton_end && return 79; }
}

baton_check() { # [milliseconds that are needed]
	local sent now took=$SECONDS left
	{ IFS=' ' read -r sent _ </proc/uptime; } 2>/dev/null || sent= # it goes on while the machine is suspended
	baton_ask '"do":"check","lock":1' || return
	{ IFS=' ' read -r now _ </proc/uptime; } 2>/dev/null || now=
	if [[ $sent.$now =~ ^[0-9]+\.[0-9][0-9]\.[0-9]+\.[0-9][0-9]$ ]]; then
		took=$(((10#${now/./} - 10#${sent/./} + 1) * 10))
	else
		took=$(((SECONDS - took + 1) * 1000))
	fi
	left=${BATON_ANSWER#*'"remaining_ms":'} left=$((${left%%[^0-9]*} - took))
	[[ $left -ge ${1:-1} ]] || { BATON_ERROR="only $left ms are left" && return 79; }
}

baton_unlock() {
	local code=0
	baton_ask '"do":"unlock","lock":1' || code=$?
	baton_end
	return $code
}

baton_end() { # the session
	[[ -n ${BATON_IN-} && $BATON_SHELL == "$BASHPID" ]] || return 0
	[[ -z ${BATON_COPROC[1]-} ]] || eval "exec ${BATON_COPROC[1]}>&-"
	exec {BATON_IN}<&-
	# KILL, as socat may miss a TERM that comes while it hears of the end of its input.
	[[ -z ${BATON_COPROC_PID-} ]] || { kill -KILL "$BATON_COPROC_PID" && wait "$BATON_COPROC_PID"; } 2>/dev/null || true
	unset BATON_IN BATON_TOKEN
	return 0
}
