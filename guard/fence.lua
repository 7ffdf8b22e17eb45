-- KEYS: the mark, and what is written. ARGV: the token, the holder, a command, and its arguments after the key.
-- Tokens are compared as text: numbers of Lua are exact only up to 2^53.
local token, holder = ARGV[1], ARGV[2]
if not string.find(token, '^[1-9]%d*$') then
  return redis.error_reply('ERR fence: the token is not a positive number')
end
local mark = redis.call('GET', KEYS[1])
if mark ~= token .. ' ' .. holder then
  if mark then
    local last = string.match(mark, '^([1-9]%d*) ')
    if not last then
      return redis.error_reply('ERR fence: ' .. KEYS[1] .. ' holds something else than a mark')
    end
    if #token < #last or #token == #last and token <= last then
      return {'stale', last}
    end
  end
  redis.call('SET', KEYS[1], token .. ' ' .. holder)
end
if ARGV[3] then
  return {'done', redis.call(ARGV[3], KEYS[2], unpack(ARGV, 4))}
end
return {'done'}
