# What the tests tell a process to do, in bash: see process in language_test.go.
. "$CLIENTS/bash/baton.sh"

answer() { # code of baton, value
	case $1 in
	0) echo "ok${2:+ $2}" ;;
	75) echo "held $BATON_ERROR" ;;
	79) echo "lost $BATON_ERROR" ;;
	*)
		code=${BATON_ANSWER#*\"error\":\"}
		[[ $code != "$BATON_ANSWER" ]] || code=agent
		[[ $code == failed* ]] || code="error $code"
		echo "${code%%\"*} $BATON_ERROR"
		;;
	esac
}

fail() { echo "failed: $* ($BATON_ERROR)" >&2 && exit 1; }

expect() { # code, command
	local want=$1 got=0
	shift
	"$@" || got=$?
	[[ $got == "$want" ]] || fail "$*: $got, want $want"
}

work() { # what, text
	case $1 in
	raise) return 3 ;;
	block)
		echo "ok runs" >&3
		cat "$2"
		;;
	esac
	echo "$2"
}

api() { # key
	set -u
	expect 0 baton_lock "$1" 5000 60000
	[[ $BATON_TOKEN =~ ^[0-9]+$ ]] || fail "token $BATON_TOKEN"
	(expect 69 baton_check && expect 69 baton_unlock && expect 69 baton_lock other) || exit
	[[ $(baton_check; echo $?) == 69 ]] || fail "check in a substitution"
	expect 0 baton_check 500
	expect 79 baton_check 60000
	expect 69 baton_lock other
	expect 1 baton_leader nobody # in the session of the lock
	expect 0 baton_unlock
	[[ -z ${BATON_TOKEN-} ]] || fail "a token without a lock"
	expect 79 baton_check
	expect 79 baton_unlock
	expect 69 baton_lock $'\e'
	text=$'a "quoted" \\n line\n\ttab \e[1m <&> é'
	[[ $(baton_once "$1" '' echo "$text") == "$text" ]] || fail "the result of a run"
	[[ $(baton_once "$1" '' false) == "$text" ]] || fail "the recorded result"
	set -e
	baton_lock "$1" 0
	baton_check
	baton_unlock
	set +eu
}

exec 3>&1
while IFS=' ' read -r verb a b c d e; do
	case $verb in
	lock)
		[[ $b != - && $b != inf ]] || b=
		[[ $c != - && $c != inf ]] || c=
		baton_lock "$a" "$b" "$c" "${d#-}" "$e"
		answer $? "${BATON_TOKEN-}"
		;;
	try)
		baton_try_lock "$a"
		code=$?
		[[ $code != 75 ]] && answer $code "${BATON_TOKEN-}" || echo ok none
		;;
	check)
		baton_check
		code=$? left=${BATON_ANSWER#*'"remaining_ms":'}
		answer $code "${left%%[^0-9]*}"
		;;
	unlock)
		baton_unlock
		answer $?
		;;
	once)
		BATON_RESULT=
		baton_once "$a" "${b#-}" work "$c" "$d" >/dev/null
		code=$?
		[[ $code == [03] || -z $BATON_RESULT ]] || printf 'kept %s ' "$BATON_RESULT"
		[[ $code != 3 ]] && answer $code "$BATON_RESULT $BATON_ATTEMPTS" || echo raised
		;;
	take)
		ok=true
		baton_take "$a" "$b" "${c#-}" || ok=false
		[[ $BATON_ANSWER == *'"limit":'* ]] && echo "ok $ok $BATON_REMAINING ${BATON_RETRY:-$([[ $ok == true ]] && echo 0 || echo -1)}" || answer 69
		;;
	leader)
		baton_leader "$a"
		case $? in
		0) baton_field token && echo "ok $BATON_LEADER $BATON_TEXT" || echo "ok $BATON_LEADER 0" ;;
		1) echo ok none ;;
		*) answer 69 ;;
		esac
		;;
	spawn)
		cat "$a" >/dev/null &
		echo "ok $!"
		;;
	fork)
		(expect 69 baton_check && expect 69 baton_unlock && baton_end) || fail "a subshell used the lock"
		echo ok
		;;
	count)
		for ((i = 0; i < c; i++)); do
			baton_lock "$a" || fail lock
			IFS=' ' read -r n last <"$b"
			[[ $BATON_TOKEN -gt $last ]] || fail "the token does not rise"
			echo "$((n + 1)) $BATON_TOKEN" >"$b"
			baton_unlock || fail unlock
		done
		echo ok
		;;
	api)
		api "$a"
		echo ok
		;;
	esac
done
