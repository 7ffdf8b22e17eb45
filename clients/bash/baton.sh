# Distributed locks through the agent of this host ("baton agent"). Source it; needs socat.
#
#   baton_lock invoice/42 10000 || exit   # waits for 10 s; without a number as long as it takes
#   echo "$BATON_TOKEN"
#   baton_check 1000 && ./pay             # at least 1 s is left
#   baton_unlock
#
# One lock at a time. It is free when the shell ends, however that happens, also while a
# command of it runs on. exec is such an end, and so is the last command of bash -c, which
# bash runs as if by exec: end with baton_unlock. Do not call baton_lock in $(…) or behind
# a pipe, where it is another shell's.

# Errors: 75 held, 79 lost, 69 anything else; what the agent said is in BATON_ERROR.
baton_ask() { # request, without its id
	local traps
	BATON_ERROR= BATON_ANSWER=
	[[ -n ${BATON_IN-} ]] || { BATON_ERROR="no lock" && return 79; }
	# If the agent has ended the session, writing is a SIGPIPE, or bash has unset
	# BATON_COPROC. The agent may have said why.
	traps=$(trap -p PIPE)
	trap '' PIPE
	[[ -z ${BATON_COPROC[1]-} ]] || printf '{"id":%d,%s}\n' $((++BATON_ID)) "$1" 2>/dev/null >&"${BATON_COPROC[1]}"
	eval "${traps:-trap - PIPE}"
	IFS= read -r BATON_ANSWER <&"$BATON_IN" || { BATON_ERROR="the agent has gone" && return 79; }
	[[ $BATON_ANSWER != *'"ok":true'* ]] || return 0
	BATON_ERROR=$BATON_ANSWER
	case $BATON_ANSWER in
	*'"error":"held"'*) return 75 ;;
	*'"error":"lost"'* | *'"error":"closing"'*) return 79 ;;
	esac
	return 69
}

baton_lock() { # key [milliseconds to wait [milliseconds to hold at most]]
	local code=0 want
	[[ $1 != *[\"\\]* ]] || { BATON_ERROR='a key with " or \' && return 69; }
	[[ -z ${BATON_IN-} ]] || { BATON_ERROR="one lock at a time" && return 69; }
	coproc BATON_COPROC { exec socat -t0 - "UNIX-CONNECT:${BATON_AGENT:-/run/baton/agent.sock}" 2>/dev/null; }
	exec {BATON_IN}<&"${BATON_COPROC[0]}" # the output is not copied: children would inherit the copy, and keep the lock
	BATON_ID=0
	IFS= read -r BATON_ANSWER <&"$BATON_IN" && [[ $BATON_ANSWER == *'"ok":true'* ]] || {
		BATON_ERROR=${BATON_ANSWER:-no agent} && baton_end && return 69
	}
	want="\"do\":\"lock\",\"key\":\"$1\"${2:+,\"wait_ms\":$2}${3:+,\"max_hold_ms\":$3}"
	baton_ask "$want" || { code=$? && baton_end && return $code; }
	BATON_TOKEN=${BATON_ANSWER#*'"token":"'} BATON_TOKEN=${BATON_TOKEN%%\"*}
}

baton_check() { # [milliseconds that are needed]
	baton_ask '"do":"check","lock":1' || return
	local left=${BATON_ANSWER#*'"remaining_ms":'}
	[[ ${left%%[^0-9]*} -ge ${1:-1} ]] || { BATON_ERROR="only ${left%%[^0-9]*} ms are left" && return 79; }
}

baton_unlock() {
	local code=0
	baton_ask '"do":"unlock","lock":1' || code=$?
	baton_end
	return $code
}

baton_end() { # the session
	[[ -z ${BATON_COPROC[1]-} ]] || eval "exec ${BATON_COPROC[1]}>&-"
	exec {BATON_IN}<&-
	[[ -z ${BATON_COPROC_PID-} ]] || wait "$BATON_COPROC_PID" 2>/dev/null
	unset BATON_IN BATON_TOKEN
	return 0
}
