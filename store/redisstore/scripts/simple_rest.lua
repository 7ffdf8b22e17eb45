-- Rest of simple.lua: decides by decide what simple.lua left.

for _, i in ipairs(left) do
	local times, text = string.match(ARGV[i], '^(%d+) (.*)$')
	local all, answer = {limit(text)}, nil
	for _ = 1, tonumber(times) do
		local a = decide({KEYS[i]}, nil, all, now, false, IF_ALLOWED, 0, EXACT - 1, 0, 0, 0)
		if answer and #a == 5 then
			for n = 2, 5 do
				answer[#answer + 1] = a[n]
			end
		else
			answer = a
		end
	end
	answers[i] = answer
end
return #answers == 1 and answers[1] or answers
