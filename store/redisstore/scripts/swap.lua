-- Keeps the text of a record or of an override: see package kept.
--
-- KEYS  1 the text of a record, or the hash of overrides by the key of the limit
-- ARGV  1 what to do: swap, or list overrides; look at a record as a list does
--       2 old, 3 next, 4 µs to keep it for, 5 the key of the limit, or '' for a record,
--       6 how much of a record a list shows
-- Answers {1 if it was swapped, else 0, text, ms left} with the text that is there if it was
-- not; {now, key, end and text, …} for a list; or {2, type of what is there instead}.

local call, find, format = redis.call, string.find, string.format
local K, act, old, next, keep, field = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

local v
if act == 'list' then
	v = redis.pcall('HGETALL', K)
elseif act == 'look' then
	v = redis.pcall('GETRANGE', K, 0, ARGV[6] - 1)
elseif field ~= '' then
	v = redis.pcall('HGET', K, field)
else
	v = redis.pcall('GET', K)
end
if type(v) == 'table' and v.err then
	if not find(v.err, 'WRONGTYPE', 1, true) then
		return v
	end
	local t = call('TYPE', K)
	return {2, type(t) == 'table' and t.ok or t}
end
local text, now = v or '', 0
if act == 'list' or field ~= '' then
	local t = call('TIME')
	now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
if act == 'list' then
	table.insert(v, 1, format('%.0f', now))
	return v
elseif act == 'look' then
	return {0, text, call('PTTL', K)}
end

-- ended tells the end of an override, and its text unless that has passed.
local function ended(value)
	local ends, rest = string.match(value, '^(%d+) (.*)$')
	ends = tonumber(ends) or 0
	return ends, ends > now and rest or ''
end

local left
if field ~= '' then
	left, text = ended(text)
	left = math.floor((left - now) / 1000)
end
if text ~= old then
	if old ~= '' or next ~= '' then
		-- It changes nothing, but attempts to write: a replica, or a primary that was
		-- demoted, does not know what is there and must answer an error. That of a full
		-- memory comes after that.
		local may
		if field == '' and v then
			may = redis.pcall('SETRANGE', K, 0, '')
		else
			may = redis.pcall('HDEL', K, '')
		end
		if type(may) == 'table' and may.err and not find(may.err, 'OOM', 1, true) then
			return may
		end
	end
	return {0, text, left or call('PTTL', K)}
elseif next == '' then
	if old ~= '' then
		if field == '' then call('DEL', K) else call('HDEL', K, field) end
	end
	return {1, '', 0}
end
local ms = math.ceil(keep / 1000)
if field == '' then
	call('SET', K, next, 'PX', format('%.0f', ms))
	return {1, '', 0}
end
local all = call('HGETALL', K)
for i = 1, #all, 2 do
	if ended(all[i + 1]) <= now then
		call('HDEL', K, all[i])
	end
end
call('HSET', K, field, format('%.0f ', now + keep) .. next)
if call('PTTL', K) < ms then
	call('PEXPIRE', K, format('%.0f', ms))
end
return {1, '', 0}
