# What the tests tell a process to do, in bash: see drive in language_test.go.
. "$CLIENTS/bash/baton.sh"

answer() { # code of baton, value
	case $1 in
	0) echo "ok${2:+ $2}" ;;
	75) echo "held $BATON_ERROR" ;;
	79) echo "lost $BATON_ERROR" ;;
	*)
		code=${BATON_ANSWER#*\"error\":\"}
		[[ $code != "$BATON_ANSWER" ]] || code=agent
		echo "error ${code%%\"*} $BATON_ERROR"
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

api() { # key
	set -u
	expect 0 baton_lock "$1" 5000 60000
	[[ $BATON_TOKEN =~ ^[0-9]+$ ]] || fail "token $BATON_TOKEN"
	(expect 69 baton_check && expect 69 baton_unlock && expect 69 baton_lock other) || exit
	[[ $(baton_check; echo $?) == 69 ]] || fail "check in a substitution"
	expect 0 baton_check 500
	expect 79 baton_check 60000
	expect 69 baton_lock other
	expect 0 baton_unlock
	[[ -z ${BATON_TOKEN-} ]] || fail "a token without a lock"
	expect 79 baton_check
	expect 79 baton_unlock
	expect 69 baton_lock 'a"b'
	expect 69 baton_lock $'\e'
	set -e
	baton_lock "$1" 0
	baton_check
	baton_unlock
	set +eu
}

while IFS=' ' read -r verb a b c d; do
	case $verb in
	lock)
		[[ $b != - ]] || b=
		baton_lock "$a" "$b" "${c#-}"
		answer $? "${BATON_TOKEN-}"
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
