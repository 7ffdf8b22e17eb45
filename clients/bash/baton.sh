# Distributed locks through the agent of this host ("baton agent"). Source it; needs socat.
#
#   baton_lock invoice/42 10000 || exit   # waits for 10 s; without a number as long as it takes
#   echo "$BATON_TOKEN"
#   baton_check 1000 && ./pay             # at least 1 s is left
#   baton_unlock
#
# One lock at a time. It is free when the shell ends, however that happens, also while a command of it
# runs on. exec is such an end, and so is the last command of bash -c: end with baton_unlock. A lock is
# that of the shell that called baton_lock: ( … ), $( … ) and both sides of a pipe are other shells.
[ -n "${BASH_VERSION-}" ] || { echo "baton.sh needs bash" >&2 && exit 69; }

# Errors: 75 held, 79 lost, 69 anything else; BATON_ERROR says why, BATON_ANSWER is the agent's line.
baton_ask() { # request, without its id
	local sent=$SECONDS left
	BATON_ERROR= BATON_ANSWER=
	[[ -n ${BATON_IN-} ]] || { BATON_ERROR="no lock" && return 79; }
	[[ $BATON_SHELL == "$BASHPID" ]] || { BATON_ERROR="the lock belongs to another shell" && return 69; }
	baton_write "{\"id\":$((++BATON_ID)),$1}"
	baton_read || BATON_ANSWER=
	if [[ $BATON_ANSWER != "{\"id\":$BATON_ID,"* ]]; then # the end, or an answer that was not read when it was due
		baton_end
		[[ $BATON_ANSWER == '{"ok":false,'* ]] && baton_said || BATON_ERROR="the agent has gone"
		[[ $BATON_ANSWER == *'"error":"bad"'* ]] && return 69 || return 79
	fi
	left=${BATON_ANSWER#*'"remaining_ms":'} left=${left%%[^0-9]*}
	[[ -z $left ]] || BATON_UNTIL=$((sent + left / 1000 + 1))
	[[ $BATON_ANSWER != *'"ok":true'* ]] || return 0
	baton_said
	case $BATON_ANSWER in
	*'"error":"held"'*) return 75 ;;
	*'"error":"lost"'*) return 79 ;;
	*'"ok":false'*) return 69 ;;
	esac
	baton_end && return 79
}

baton_write() { # line
	# If the agent has ended the session, writing is a SIGPIPE, or bash has unset BATON_COPROC.
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

baton_field() { # name of a text of the answer, which becomes BATON_TEXT
	local text="\"$1\":\"(([^\"\\\\]|\\\\.)*)\""
	BATON_TEXT=
	[[ $BATON_ANSWER =~ $text ]] || return 1
	printf -v BATON_TEXT %b "${BASH_REMATCH[1]//\\\"/\"}" # the other escapes of JSON are some of printf's
}

baton_number() { # name, or nothing is printed
	local number=${BATON_ANSWER#*"\"$1\":"}
	[[ $number == "$BATON_ANSWER" ]] || echo "${number%%[^0-9]*}"
}

baton_json() { # text, as BATON_TEXT
	local c u
	BATON_TEXT=${1//\\/\\\\} BATON_TEXT=${BATON_TEXT//\"/\\\"}
	while [[ $BATON_TEXT =~ [[:cntrl:]] ]]; do
		c=${BASH_REMATCH[0]} && printf -v u '\\u%04x' "'$c"
		BATON_TEXT=${BATON_TEXT//"$c"/"$u"}
	done
	BATON_TEXT=\"$BATON_TEXT\"
}

baton_said() { baton_field message && BATON_ERROR=$BATON_TEXT || BATON_ERROR=$BATON_ANSWER; }

baton_open() { # a session
	local socket=${BATON_AGENT:-/run/baton/agent.sock}
	BATON_ANSWER=
	[[ -z ${BATON_IN-} ]] || { BATON_ERROR="this shell has a lock, and can have one at a time" && return 69; }
	type socat >/dev/null 2>&1 || { BATON_ERROR="socat is missing: install it, or set PATH" && return 69; }
	# The connection stays after the agent has ended the session (-t) until baton_end: the
	# agent keeps until then what baton_check was told.
	BATON_ID=0 BATON_UNTIL=0 BATON_SHELL=$BASHPID
	coproc BATON_COPROC { exec socat -t86400 STDIO,shut-close "UNIX-CONNECT:$socket" 2>/dev/null; }
	exec {BATON_IN}<&"${BATON_COPROC[0]}" # the output is not copied: children would inherit the copy, and keep the lock
	baton_read && [[ $BATON_ANSWER == *'"ok":true'* ]] || {
		baton_said
		[[ -n $BATON_ANSWER ]] || BATON_ERROR="no agent at $socket: start baton agent --socket, or set BATON_AGENT"
		[[ -n $BATON_ANSWER || ! -e $socket || -w $socket ]] || BATON_ERROR="no right to $socket: see --group and --mode of the agent"
		baton_end && return 69
	}
}

baton_request() { # request, in the session of the lock, or in one of its own
	local code=0 own=
	[[ -n ${BATON_IN-} ]] || { baton_open && own=1; } || return
	baton_ask "$1" || code=$?
	[[ -z $own ]] || baton_end
	return $code
}

baton_lock() { # key [milliseconds to wait [milliseconds to hold at most [shared, or permits as 2/10 [value]]]]
	local code=0 want
	baton_json "$1" && want="\"do\":\"lock\",\"key\":$BATON_TEXT${2:+,\"wait_ms\":$2}${3:+,\"max_hold_ms\":$3}"
	[[ ${4-} != */* ]] || want+=",\"mode\":\"permits\",\"n\":${4%/*},\"of\":${4#*/}"
	[[ ${4-/} == */* ]] || want+="${4:+,\"mode\":\"$4\"}"
	[[ -z ${5-} ]] || { baton_json "$5" && want+=",\"value\":$BATON_TEXT"; }
	baton_open || return
	baton_ask "$want" || { code=$? && baton_end && return $code; }
	baton_field token && [[ $BATON_TEXT =~ ^[0-9]+$ ]] || { BATON_ERROR="an answer without a token" && baton_end && return 79; }
	BATON_TOKEN=$BATON_TEXT
}

baton_try_lock() { baton_lock "$1" 0 "${@:2}"; } # key [as baton_lock, without the wait]

# Its output is recorded, and printed, now and later. If it fails the next call runs it.
baton_once() { # key, milliseconds to wait or '', command …
	local code=0
	baton_json "$1"
	baton_open || return
	baton_ask "\"do\":\"once\",\"key\":$BATON_TEXT${2:+,\"wait_ms\":$2}" || { code=$? && baton_end && return $code; }
	if [[ $BATON_ANSWER != *'"run":true'* ]]; then
		baton_field result && BATON_RESULT=$BATON_TEXT BATON_ATTEMPTS=0
	else
		baton_field token && BATON_TOKEN=$BATON_TEXT BATON_ATTEMPTS=$(baton_number attempts)
		shift 2
		# The shell of the substitution must not have the connection: it may outlive this one.
		BATON_RESULT=$(eval "exec ${BATON_COPROC[1]:-9}>&-" && "$@") || { code=$? && baton_end && return $code; }
		baton_json "$BATON_RESULT"
		baton_ask "\"do\":\"finish\",\"lock\":1,\"result\":$BATON_TEXT" || code=$?
	fi
	baton_end
	printf '%s\n' "$BATON_RESULT" # also if it could not be recorded
	return $code
}

# 0 if it is allowed, 75 if the limit is used up: for BATON_RETRY milliseconds, for ever if that is empty.
baton_take() { # rule, key [cost]
	local code=0 rule
	baton_json "$1" && rule=$BATON_TEXT && baton_json "$2"
	baton_request "\"do\":\"take\",\"rule\":$rule,\"key\":$BATON_TEXT${3:+,\"cost\":$3}" || code=$?
	[[ $BATON_ANSWER != *'"error":"limited"'* ]] || code=75
	BATON_REMAINING=$(baton_number remaining) BATON_RETRY=$(baton_number retry_ms)
	return $code
}

# Who leads, as BATON_LEADER: has the lock of the key with a value. 1 if nobody does.
baton_leader() { # key
	baton_json "$1"
	baton_request "\"do\":\"leader\",\"key\":$BATON_TEXT" || return
	baton_field value || true
	BATON_LEADER=$BATON_TEXT
	[[ $BATON_ANSWER == *'"led":true'* ]]
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
}
