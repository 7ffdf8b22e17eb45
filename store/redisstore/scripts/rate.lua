-- What package rate does. States and parameters are its own, from index 1. All
-- numbers are integers below 2^53: of these + - * and fmod are exact, and so
-- is the division of a multiple. Any other quotient is only an estimate.

local call, fmod, floor, min, max = redis.call, math.fmod, math.floor, math.min, math.max
local gmatch, find, format, concat = string.gmatch, string.find, string.format, table.concat

local EXACT = 9007199254740992 -- 2^53
local MARK = 2251799813685248 -- 2^51, as rate.lifeMark
local LATEST = 4000000000000000

-- div rounds towards zero.
local function div(a, b)
	return (a - fmod(a, b)) / b
end

local function modulo(a, b)
	local m = fmod(a, b)
	if m < 0 then
		return m + b
	end
	return m
end

-- numbers reads a list of them, nothing if it is none.
local function numbers(text)
	if find(text, '[^%d ]') then
		return nil
	end
	local list, n = {}, 0
	for digits in gmatch(text, '%d+') do
		local v = tonumber(digits)
		if v >= EXACT then
			return nil
		end
		n = n + 1
		list[n] = v
	end
	return list
end

-- A length of time is two numbers: µs, and a fraction with the denominator tokens.
-- of is how long n tokens take.
local function of(tokens, period, n)
	local r = fmod(period, tokens)
	local x = n * r
	local frac = fmod(x, tokens)
	return n * ((period - r) / tokens) + (x - frac) / tokens, frac
end

local function longer(us, frac, than, fraction)
	return us > than or us == than and frac > fraction
end

-- whole is how many tokens it takes to be as long as a span, at most most. The
-- estimate is off by two at worst.
local function whole(tokens, period, us, frac, most)
	local n = min(floor((us * tokens + frac) / period), most)
	for _ = 1, 4 do
		if n > 0 and not longer(us, frac, of(tokens, period, n - 1)) then
			n = n - 1
		end
	end
	for _ = 1, 4 do
		if n < most and longer(us, frac, of(tokens, period, n)) then
			n = n + 1
		end
	end
	return n
end

local function mosttokens(tokens, period)
	return min(div(EXACT - 1, tokens), div(EXACT - LATEST - 1, div(period, tokens) + 1))
end

local kinds = {} -- by the first number of their states
