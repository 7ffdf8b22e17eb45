-- What package rate does. States and parameters are its own, from index 1. All
-- numbers are integers below 2^53: of these + - * and fmod are exact, and so
-- is the division of a multiple. A quotient is no more than a guess.

local call, fmod, floor, min, max = redis.call, math.fmod, math.floor, math.min, math.max
local gmatch, find, format, concat = string.gmatch, string.find, string.format, table.concat

local EXACT = 9007199254740992 -- 2^53

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

local kinds = {} -- by the first number of their states
