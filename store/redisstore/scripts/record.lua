-- Does for one operation what driver.Records says.
--
-- KEYS  1 the record
-- ARGV  1 what to do, 2 token, 3 ms to keep it for, 4 owner, or the state that it
--       ends in, 5 result
-- Answers {1, ms left, token, owner, attempts, state, began, finished, result}, and
-- to look is to find without the result of what is finished;
-- {0, last token, its state} if the attempt is superseded or there is no
-- record; or {2, type of what is there instead of a record}.

local call, find, format = redis.call, string.find, string.format
local K, act, token, keep = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- below compares tokens as texts: they have up to 19 digits, which numbers round.
local function below(a, b)
	return #a < #b or #a == #b and a < b
end

local function now()
	local t = call('TIME')
	return t[1] .. format('%06d', t[2])
end

local v = redis.pcall('HMGET', K, 'token', 'owner', 'attempts', 'state', 'began', 'finished', act == 'look' and '' or 'result')
if v.err then
	if not find(v.err, 'WRONGTYPE', 1, true) then
		return v
	end
	local t = call('TYPE', K)
	return {2, type(t) == 'table' and t.ok or t}
end
local last, attempts, state = v[1], v[3], v[4]
local done = state == 'succeeded' or state == 'final'
if last or call('EXISTS', K) == 1 then
	if not (last and attempts and find(last, '^[1-9]%d*$') and #last <= 19 and find(attempts, '^[1-9]%d*$') and #attempts <= 15
		and (done or state == 'begun' or state == 'failed')) then
		return {2, 'hash'}
	end
end

local function answer()
	return {1, call('PTTL', K), v[1], v[2] or '', v[3], v[4], v[5] or '', v[6] or '', v[7] or ''}
end

-- refuse changes nothing, but makes an attempt to write: a replica, or a primary that
-- was demoted, does not know what has begun and must answer an error.
local function refuse()
	local may = redis.pcall('HDEL', K, '')
	if type(may) == 'table' and may.err then
		return may
	end
	return {0, last or '', state or ''}
end

if act == 'find' or act == 'look' then
	if act == 'look' and state == 'failed' then
		v[7] = call('HGET', K, 'result')
	end
	return last and answer() or {0, '', ''}
elseif act == 'forget' then
	if not last then
		return refuse()
	end
	call('DEL', K)
	return answer()
elseif act == 'begin' then
	if done then
		return answer()
	elseif last and below(token, last) then
		return refuse()
	elseif token ~= last then
		v[1], v[2], v[3], v[4], v[5] = token, ARGV[4], format('%.0f', (attempts or 0) + 1), 'begun', now()
		call('HSET', K, 'token', v[1], 'owner', v[2], 'attempts', v[3], 'state', v[4], 'began', v[5])
		if v[6] then -- of the attempt before
			call('HDEL', K, 'finished', 'result')
			v[6], v[7] = false, false
		end
	end
else
	if token ~= last then
		return refuse()
	elseif done then
		return answer()
	end
	v[4], v[6], v[7] = ARGV[4], now(), ARGV[5]
	call('HSET', K, 'state', v[4], 'finished', v[6], 'result', v[7])
end
call('PEXPIRE', K, keep)
return answer()
