-- Rest of release.lua, when the queue is not empty: grant to its head.

return grantNext(KEYS[1], KEYS[2], KEYS[3], e)
