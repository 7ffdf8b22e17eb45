-- Decides requests that ask one limit each, as decide.lua does. It comes before all
-- functions, as enqueue.lua does, and handles the usual states itself. Other states
-- are left to simple_rest.lua.
--
-- KEYS  for each request the limit's state
-- ARGV  for each request how often it is made, its cost, and the numbers of the
--       algorithm
-- A window's state with many moments begins with one more entry: the moment 0, with
-- the sum of all counts, so that this script need not read all of it. Code that reads
-- every moment skips this entry as expired.
--
-- Answers for each request (for a single one without the list) a text: the time, in
-- seconds and µs, and the state that was found, or a shorter one from which the same
-- decision follows. The caller decides by that once more. For a state that is left to
-- simple_rest.lua the answer is that of decide: at, and then for each time µs,
-- remaining, next and reset.

local answers, left, now = {}, nil, nil
do
	-- % is exact for what is here: not negative, and below 2^53.
	local call, match, format = redis.call, string.match, string.format
	local t = call('TIME')
	local second, micro = t[1], t[2]
	now = second * 1000000 + micro
	-- The argument of the last request: that of the next one is mostly the same.
	local told, kind, times
	local rate, tokens, full, length, most
	local cost, limit, life, ends, head
	for i = 1, #KEYS do
		local arg, text = ARGV[i], redis.pcall('GET', KEYS[i])
		if arg ~= told then
			local period, burst
			told, kind = arg, 3
			times, cost, rate, tokens, period, burst = match(arg, '^(%d+) (%d+) 3( (%d+) (%d+)) (%d+)')
			if times then
				-- Time is counted in what makes all of it whole: a µs is as
				-- long as the rate has tokens, and each token is a period long.
				tokens, full, length, most = tokens + 0, burst * period, cost * period, ' ' .. burst
				if full >= 4503599627370496 then -- 2^52
					kind = 0
				end
			else
				kind = 1
				local part, offset
				times, cost, limit, part, life, offset = match(arg, '^(%d+) (%d+) 1 (%d+) (%d+) (%d+) (%d+) 0 ')
				if times then
					head = format('1 %.0f', 2251799813685248 + life) -- as rate.lifeMark
					cost, limit, part, life = cost + 0, limit + 0, part + 0, life + 0
					ends = now - (now - offset) % part + life
				else
					kind = 0
				end
			end
		end

		local odd, new, reset = true, nil, nil
		if type(text) == 'table' then
			-- Another type: left to simple_rest.lua.
		elseif kind == 3 then
			local used, frac = 0, 0
			odd = false
			if text then
				local of
				used, frac, of = match(text, '^3 (%d+) (%d+)( %d+ %d+) %d+$')
				odd = of ~= rate or frac + 0 >= tokens
				if not odd then
					used = (used - now) * tokens + frac
					if used < 0 then
						used = 0
					end
					odd = used > full
				end
			end
			if not odd and length > 0 and used + length <= full then
				local free = full - used
				used = used + (times == '1' and length or math.min(times * length, free - free % length))
				frac = used % tokens
				reset = (used - frac) / tokens
				new = format('3 %.0f', now + reset) .. (frac > 0 and format(' %.0f', frac) or ' 0') .. rate .. most
				if frac > 0 then
					reset = reset + 1
				end
			end
		elseif kind == 1 then
			local rest, sub = '', string.sub
			local used, n, moment, count = 0, 0, nil, nil -- these are the last
			local from, to, last = 1, 0, 0 -- what stays of the rest; where its last count is
			odd = false
			if text then
				rest = sub(text, #head + 1)
				odd = sub(text, 1, #head) ~= head
				local find, _, e, sum, m, c = string.find, nil, nil, nil, nil, nil
				_, e, sum = find(rest, '^ 0 (%d+)')
				to = sum and #rest or 0
				if sum and not odd then -- a long one: this counts until 0, and is the sum of all
					used, from = sum + 0, e + 1
					while from <= to and n == 0 and not odd do
						_, e, m, c = find(rest, '^ (%d+) (%d+)', from)
						if not e then
							odd = true
						elseif m + 0 > now then
							n = 17 -- or less
						else
							used, from = used - c, e + 1
						end
					end
					if n > 0 then
						_, _, moment, last, count = find(rest, ' (%d+) ()(%d+)$', math.max(from, to - 40))
						moment, count = moment + 0, count + 0
					end
				end
				for a, m, b, c in string.gmatch(sum and '' or rest, '() (%d+) ()(%d+)') do
					odd = odd or a ~= to + 1
					to, last = b + #c - 1, b
					m = m + 0
					if n > 0 or m > now then
						if n == 0 then
							from = a
						end
						n, moment, count = n + 1, m, c + 0
						used = used + count
						odd = odd or count == 0
					end
				end
				odd = odd or to ~= #rest or n > 0 and moment > ends + life
			end
			local latest, taken = moment, 0
			if not odd and cost > 0 and used + cost <= limit then
				local free = limit - used
				taken = times == '1' and cost or math.min(times * cost, free - free % cost)
				local head = n > 16 and head .. format(' 0 %.0f', used + taken) or head
				if n > 0 and moment >= ends then
					new = head .. sub(rest, from, last - 1) .. format('%.0f', count + taken)
				else
					new = head .. (n > 0 and sub(rest, from) or '') .. format(' %.0f %.0f', ends, taken)
					moment = ends
				end
				reset = moment - now
			end
			if not odd and n > 16 then
				-- Of a long state the answer has only: when something comes back, when
				-- enough for the first refused request has, and when all has.
				local first, enough, sum, since = used >= limit and used - limit + 1 or 1, used + taken + cost - limit, 0, 0
				if enough > used then
					enough = 0 -- that is of what is taken now
				end
				local brief = head
				for m, c in string.gmatch(sub(rest, from), '(%d+) (%d+)') do
					sum, since = sum + c, since + c
					if sum >= first and sum - c < first or sum >= enough and sum - c < enough then
						brief, since = brief .. format(' %s %.0f', m, since), 0
						if sum >= first and sum >= enough then
							break
						end
					end
				end
				if since > 0 or sum < used then
					brief = brief .. format(' %.0f %.0f', latest, since + used - sum)
				end
				text = brief
			end
		end

		if new then
			reset = reset + 999
			call('SET', KEYS[i], new, 'PX', (reset - reset % 1000) / 1000)
		end
		if odd then
			left = left or {}
			left[#left + 1] = i
		end
		answers[i] = not odd and second .. ' ' .. micro .. ' ' .. (text or '')
	end
	if not left then
		return #answers == 1 and answers[1] or answers
	end
end
