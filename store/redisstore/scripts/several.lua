
-- What rate.several does: a key has a state for each kind of limit under which
-- something was taken, and what was taken under the other kinds counts, too.

local CONSUMED = EXACT / 8

local function owns(q, s)
	return s[1] == q[1] and (q[1] ~= 2 or #s == 6 and s[2] == q[3])
end

-- consumed answers how much of a state has not come back, and when all of it has.
local function consumed(s, now)
	local n, back = 0, 0
	if s[1] == 1 and #s > 2 and s[2] >= 1 and #s % 2 == 0 then
		for i = 3, #s, 2 do
			if s[i] > now then
				n, back = min(n + s[i + 1], CONSUMED), max(back, s[i] - now)
			end
		end
	elseif s[1] == 2 and #s == 6 and s[2] >= 1 and s[4] >= 1 and s[3] < div(EXACT, s[2]) - 2 then
		n = s[5] + s[6]
		if (s[3] + 1) * s[2] <= now then
			n = s[6]
		end
		n, back = min(n, CONSUMED), (s[3] + (s[6] > 0 and 2 or 1)) * s[2] - now
	elseif s[1] == 3 and #s == 6 and s[4] >= 1 and s[5] >= 1 and s[3] < s[4] and s[2] >= now then
		local us, frac = s[2] - now, s[3]
		n = whole(s[4], s[5], us, frac, min(mosttokens(s[4], s[5]), CONSUMED))
		back = frac > 0 and us + 1 or us
	end
	if n == 0 or back <= 0 then
		return 0, 0
	end
	return n, back
end

-- split answers q's own state; a list of all states that still count, with false for
-- q's own, or nothing if q's own is the only one; how much of the others has not come
-- back; and when it has.
local function split(q, s, now)
	if #s == 0 or owns(q, s) then
		return s, nil, 0, 0
	end
	local own, others, n, back = nil, nil, 0, 0
	local from, to = 1, #s
	if s[1] == 4 then
		from = 3
		to = 2 + (s[2] or 0)
	end
	while from <= to and to <= #s do
		local part = {}
		for i = from, to do
			part[#part + 1] = s[i]
		end
		if not own and owns(q, part) then
			own, others = part, others or {}
			others[#others + 1] = false
		else
			local more, till = consumed(part, now)
			if more > 0 then
				others = others or {}
				others[#others + 1] = part
				n, back = min(n + more, CONSUMED), max(back, till)
			end
		end
		if s[1] ~= 4 or to >= #s then
			break
		end
		from, to = to + 2, to + 1 + s[to + 1]
	end
	return own or {}, others, n, back
end

local function join(own, others)
	if not others then
		return own
	end
	local all, placed = {}, false
	for _, s in ipairs(others) do
		if not s then
			s, placed = own, true
		end
		if #s > 0 then
			all[#all + 1] = s
		end
	end
	if not placed and #own > 0 then
		all[#all + 1] = own
	end
	if #all < 2 then
		return all[1] or {}
	end
	local several = {4}
	for _, s in ipairs(all) do
		several[#several + 1] = #s
		for _, v in ipairs(s) do
			several[#several + 1] = v
		end
	end
	return several
end
