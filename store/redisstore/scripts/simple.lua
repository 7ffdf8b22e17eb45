-- Decides about requests that take from one limit each, as decide.lua does. It
-- stands before all functions, as join.lua does, and does itself what most of
-- them come to. What is odd it leaves to simple_rest.lua.
--
-- KEYS  for each request the limit's state
-- ARGV  for each request how often it is made, its cost, and the numbers of the
--       algorithm
-- Answers for each request, or for the only one just that, what decide does: at,
-- and then for each time µs, remaining, next and reset. Or, if it is made more
-- than once, {at, the state before, how often}: the rest follows from these.

local answers, left = {}, nil
local now
do
	local call, match, sub, format, fmod, min = redis.call, string.match, string.sub, string.format, math.fmod, math.min
	local t = call('TIME')
	now = t[1] * 1000000 + t[2]
	-- What is told of a request; of the next one it is mostly the same.
	local told, kind, times, cost
	local rate, tokens, period, burst, ahead, full, length
	local limit, part, life, offset, at, head
	for i = 1, #KEYS do
		local arg, text = ARGV[i], redis.pcall('GET', KEYS[i])
		if arg ~= told then
			told, kind = arg, 3
			local queue
			times, cost, rate, tokens, period, burst, queue, ahead = match(arg, '^(%d+) (%d+) 3( (%d+) (%d+)) (%d+) (%d) (%d+)')
			if times then
				-- Time is counted in what makes all of it whole: a µs is as
				-- long as the rate has tokens, and each token is a period long.
				times, cost, tokens, period, burst = times + 0, cost + 0, tokens + 0, period + 0, burst + 0
				full, length = burst * period, cost * period
				ahead = queue == '1' and ahead * period
				if full >= 4503599627370496 then -- 2^52
					kind = 0
				end
			else
				kind = 1
				times, cost, limit, part, life, offset = match(arg, '^(%d+) (%d+) 1 (%d+) (%d+) (%d+) (%d+) 0 ')
				if times then
					head = '1 ' .. limit
					times, cost, limit, part, life = times + 0, cost + 0, limit + 0, part + 0, life + 0
					at = fmod(now - offset, part)
					at = now - at + life - (at < 0 and part or 0)
				else
					kind = 0
				end
			end
		end

		local answer, new, us, remaining, next, reset
		if type(text) == 'table' then
			answer = false -- another type
		elseif kind == 3 then
			local used, odd, frac = 0, false, nil
			if text then
				local tat, of
				tat, frac, of = match(text, '^3 (%d+) (%d+)( %d+ %d+) 0$')
				odd = of ~= rate or frac + 0 >= tokens
				if not odd then
					used = (tat - now) * tokens + frac
					if used < 0 then
						used = 0
					end
				end
			end
			if not odd and used <= full then
				local free, taken = full - used, 0
				if cost > burst then
					us = -9007199254740992
				elseif cost == 0 then
					us = 0
				elseif length <= free then
					us = ahead and used - ahead or 0
					if us <= 0 then
						us = 0
					else
						frac = fmod(us, tokens)
						us = (us - frac) / tokens + (frac > 0 and 1 or 0)
					end
					taken = times == 1 and length or min(times * length, free - fmod(free, length))
				else
					frac = fmod(length - free, tokens)
					us = -1 - (length - free - frac) / tokens - (frac > 0 and 1 or 0)
				end
				used, free = used + taken, free - taken
				local rest, whole = fmod(free, period), nil
				remaining, next, reset = (free - rest) / period, 0, 0
				if used > 0 then
					frac = fmod(period - rest, tokens)
					next = (period - rest - frac) / tokens + (frac > 0 and 1 or 0)
					frac = fmod(used, tokens)
					whole = (used - frac) / tokens
					reset = whole + (frac > 0 and 1 or 0)
				end
				if taken > 0 then
					new = '3 ' .. format('%.0f', now + whole) .. (frac > 0 and format(' %.0f', frac) or ' 0') .. rate .. ' 0'
				end
			end
		elseif kind == 1 then
			local rest, odd = '', false
			local used, n, moments, counts = 0, 0, {}, {}
			local from, to, last = 1, 0, 0 -- what stays of the rest; where its last count is
			if text then
				rest = sub(text, #head + 1)
				odd = sub(text, 1, #head) ~= head
				for a, moment, b, count in string.gmatch(rest, '() (%d+) ()(%d+)') do
					odd = odd or a ~= to + 1
					to, last = b + #count - 1, b
					moment, count = moment + 0, count + 0
					if n > 0 or moment > now then
						if n == 0 then
							from = a
						end
						n = n + 1
						moments[n], counts[n] = moment, count
						used = used + count
						odd = odd or count == 0
					end
				end
				odd = odd or to ~= #rest
			end
			if not odd and used <= limit and not (n > 0 and moments[n] > at + life) then
				local free = limit - used
				if cost > limit then
					us = -9007199254740992
				elseif cost == 0 then
					us = 0
				elseif cost <= free then
					us = 0
					local taken = times == 1 and cost or min(times * cost, free - fmod(free, cost))
					free = free - taken
					if n > 0 and moments[n] >= at then
						counts[n] = counts[n] + taken
						new = head .. sub(rest, from, last - 1) .. format('%.0f', counts[n])
					else
						new = head .. (n > 0 and sub(rest, from) or '') .. format(' %.0f %.0f', at, taken)
						n = n + 1
						moments[n], counts[n] = at, taken
					end
				else
					local over, k = cost - free, 1
					while over > counts[k] do
						over, k = over - counts[k], k + 1
					end
					us = -1 - (moments[k] - now)
				end
				remaining, next, reset = free, 0, 0
				if n > 0 then
					next, reset = moments[1] - now, moments[n] - now
				end
			end
		end

		if new then
			local over = fmod(reset, 1000)
			call('SET', KEYS[i], new, 'PX', (reset - over) / 1000 + (over > 0 and 1 or 0))
		end
		if not us then
			answer = false
			left = left or {}
			left[#left + 1] = i
		elseif times == 1 then
			answer = {now, us, remaining, next, reset}
		else
			answer = {now, text or '', times}
		end
		answers[i] = answer
	end
	if not left then
		return #answers == 1 and answers[1] or answers
	end
end
