// Package badstores holds wrong stores: each has one bug that real lock services have had
// or that their authors nearly wrote. The tests of package drivertest prove that for
// every bug the case for it fails; a contract that nothing fails proves nothing.
package badstores

// A Bug is one mistake. The zero Bug is none: that store is right.
type Bug string

// The bugs, by what the store does.
const (
	// Expiry.
	NeverExpires    Bug = "never expires"
	ExpiresEarly    Bug = "expires early"
	RenewsForShow   Bug = "says held and does not prolong"
	RevivesDeleted  Bug = "renewing creates what was deleted"
	RenewsTheDead   Bug = "renews the dead"
	SharesOneExpiry Bug = "readers share one expiry"
	ListsTheDead    Bug = "shows what has expired"

	// Identity.
	ChecksThenActs    Bug = "looks whether the lock is free, and then takes it"
	ReleasesForAnyone Bug = "releases for anyone"
	RenewsForAnyone   Bug = "renews for anyone"
	IgnoresTheKey     Bug = "finds a claim by its ID on any key"
	LocksItselfOut    Bug = "refuses a repeat because it is held"
	TakesSecondPlace  Bug = "gives a repeat a second place"
	RefusesRetries    Bug = "takes a retry that finds nothing for lost"
	CountsTwice       Bug = "counts a repeated reader twice"
	CleansUpByTicket  Bug = "does not release what has no ticket"
	LosesWhatItRenews Bug = "does not find what it is renewing"
	EndsWhatItRenews  Bug = "a renewal ends what is to be released, and the release does not find it"
	RenewsOneAtATime  Bug = "does not find what another renewal is at"
	RenewsFromMemory  Bug = "a renewal writes back what it has read"
	RenewsByTicket    Bug = "finds what was granted by its last ticket alone"

	// Other processes.
	LocksOthersOut   Bug = "refuses a repeat from another process because it is held"
	CountsOthers     Bug = "counts a reader again for each process that asks for it"
	QueuesOthers     Bug = "gives a repeat from another process a second place"
	FindsNoGrants    Bug = "finds only what waits for a repeat from another process"
	EndsWithFirst    Bug = "finds a repeat from another process and does not prolong it"
	RenewsItsOwn     Bug = "renews and releases for the process that asked, and for no other"
	SweepsReturned   Bug = "takes a claim that comes back to its process for a leftover, and removes it"
	RevivesForOthers Bug = "a repeat from another process revives what was released"
	FindsThenQueues  Bug = "looks for an earlier request, and then queues"
	TogetherAlone    Bug = "refuses a repeat for several from another process because they are held"

	// Tokens.
	ForgetsOnRelease  Bug = "forgets the token on release"
	ForgetsOnDeletion Bug = "forgets the token when the key is deleted"
	RepeatsLower      Bug = "answers a repeat with a lower token"
	BreakKeepsToken   Bug = "grants the token again that it broke"
	TokenPerRenewal   Bug = "draws a token for each renewal"

	// The queue.
	Barges            Bug = "a release frees, the quickest wins"
	BargesAfterExpiry Bug = "a newcomer takes what has expired"
	LastInFirstOut    Bug = "grants the last waiter"
	WaitersNeverDie   Bug = "keeps dead waiters in line"
	ForgetsWaiters    Bug = "drops waiters that refresh their place"
	ClaimsForTTL      Bug = "a hand-over lasts for the whole TTL"
	ClaimsForClaimTTL Bug = "a hand-over ignores a short TTL"
	ClaimsForGood     Bug = "a hand-over cannot be prolonged"
	HeadTakesQueue    Bug = "who gives up takes those behind it along"
	LosesGrantedPlace Bug = "giving up does not find the grant"
	WaitsForRelease   Bug = "hands over by release alone"
	GivesUpSilently   Bug = "no hint to who is granted by giving up"
	Silent            Bug = "no hints"
	HintsAnotherToken Bug = "hints another token than it granted"

	// A bounded queue.
	LetsOneMoreWait  Bug = "lets one more wait than may"
	CountsTheDead    Bug = "counts the dead among those who wait"
	BoundsRepeats    Bug = "refuses a repeat because the queue is full"
	BoundsTheFree    Bug = "refuses a reader for those who hold beside it"
	LooksThenWaits   Bug = "looks how many wait, and then waits"
	RefusesAndQueues Bug = "gives who is refused a place all the same"

	// Readers and permits.
	ReadersOvertake   Bug = "readers overtake a waiting writer"
	SmallOvertakeBig  Bug = "small requests overtake a big one"
	OneTooMany        Bug = "one permit too many"
	OneTooFew         Bug = "one permit too few"
	CountsReturns     Bug = "frees a permit for each that comes back"
	MixesCapacities   Bug = "mixes capacities"
	DowngradeGap      Bug = "downgrades by release and acquire"
	DowngradeToken    Bug = "downgrades with a new token"
	DowngradeAlone    Bug = "a downgrade hands over to nobody"
	DowngradesWaiters Bug = "downgrades what waits"

	// Transactions that depend on a lease.
	ReleasesTooSoon   Bug = "a release does not wait for a transaction"
	BreaksTooSoon     Bug = "a break does not wait for a transaction"
	DowngradesTooSoon Bug = "a downgrade does not wait for a transaction"
	DependsOnTheDead  Bug = "a transaction depends on what has expired"

	// Moves.
	MovesACopy      Bug = "leaves the lock under the ID that it is moved from"
	MovesByRelease  Bug = "moves by release and acquire"
	MovesToken      Bug = "moves with a new token"
	MovesToldToken  Bug = "moves with the token that it is told"
	MovesWaiters    Bug = "moves what waits"
	MovesOnce       Bug = "says that a lock is gone which it has moved already"
	MovesInSecret   Bug = "shows the owner from before a move"
	MovesForTheRest Bug = "a move does not prolong"

	// Renames.
	RenamesUntilRenewed Bug = "a renewal shows the owner from before a rename"
	RenamesWaiters      Bug = "renames what waits"
	RenamesAndProlongs  Bug = "a rename prolongs"
	RenamesAll          Bug = "renames all holders of a key"
	RenamesBack         Bug = "a rename brings back what was released"
	RenamesAndServes    Bug = "renames by release and acquire"
	RenamesHostile      Bug = "shows any text as the owner"

	// Several at once.
	TogetherInPart   Bug = "keeps what was free when another key is held"
	TogetherInTurn   Bug = "grants several one after the other, for all to see"
	TogetherOnce     Bug = "refuses a repeat for several because they are held"
	TogetherMisnames Bug = "names the first key when another one is in the way"
	TogetherForgets  Bug = "refuses a repeat for several and keeps what it had"

	// Batches, keys, requests, contexts.
	BatchStops       Bug = "one bad key ends the batch"
	BatchOfHundred   Bug = "answers for the first hundred"
	BatchRefused     Bug = "one illegal claim fails the batch"
	BatchFirstOnly   Bug = "prolongs the first of a batch"
	TakesAnyKey      Bug = "takes any key"
	RaisesNothing    Bug = "ignores that a token is raised"
	LowersTokens     Bug = "raising sets the token, whatever it was"
	LivesTwice       Bug = "each asks about another life of the server"
	LacksInSilence   Bug = "has no readers, and grants them the exclusive lock"
	TrimsKeys        Bug = "trims trailing space off keys"
	FoldsCase        Bug = "folds the case of keys"
	PrefixIsPattern  Bug = "takes a prefix for a pattern"
	RoundsTTL        Bug = "takes a bad TTL for a good one"
	TakesZeroWeight  Bug = "grants a weight of nothing"
	ReleasesForShow  Bug = "says released though the context had ended"
	AcquiresInSecret Bug = "acquires though the context had ended"

	// Inspection.
	ShowsIDs         Bug = "shows IDs to people"
	TrimsOwners      Bug = "shows owners without the space at their end"
	RefusalShowsID   Bug = "shows the holder's ID to who is refused"
	BreakDropsQueue  Bug = "breaks the queue as well"
	BreakCanBeUndone Bug = "a broken holder renews itself back"
	GrantsByOwner    Bug = "shows the grants of one owner as one"
	LooksThenBreaks  Bug = "looks whether a grant holds, and then breaks what holds"
)

// CaughtBy names, for every bug, the case of the contract that must catch it.
var CaughtBy = map[Bug]string{
	NeverExpires:    "expiry frees the lock",
	ExpiresEarly:    "a grant stands for its whole TTL",
	RenewsForShow:   "renewal prolongs",
	RevivesDeleted:  "a deleted lock is lost",
	RenewsTheDead:   "renewing the dead does not revive",
	SharesOneExpiry: "each reader has its own end",
	ListsTheDead:    "inspect does not show the dead",

	ChecksThenActs:    "a crowd is served one at a time",
	ReleasesForAnyone: "only the holder releases and renews",
	RenewsForAnyone:   "only the holder releases and renews",
	IgnoresTheKey:     "one ID on two keys is two claims",
	LocksItselfOut:    "a repeated acquire finds its grant",
	TakesSecondPlace:  "a repeated acquire keeps one place",
	RefusesRetries:    "a retry that finds nothing is a first attempt",
	CountsTwice:       "a repeated acquire of a reader counts once",
	CleansUpByTicket:  "a lost grant can be released",
	LosesWhatItRenews: "release racing with the first renewal of a grant",
	EndsWhatItRenews:  "release racing with a renewal",
	RenewsOneAtATime:  "overlapping renewals of a lock that is held",
	RenewsFromMemory:  "overlapping renewals of a place",
	RenewsByTicket:    "overlapping renewals of a place",

	LocksOthersOut:   "repeated from another process: a grant",
	CountsOthers:     "repeated from another process: readers and permits",
	QueuesOthers:     "repeated from another process: a place",
	FindsNoGrants:    "repeated from another process: a grant from the queue",
	EndsWithFirst:    "repeated from another process: it outlives the first",
	RenewsItsOwn:     "repeated from another process: renewed and released",
	SweepsReturned:   "repeated from another process: a claim that comes back",
	RevivesForOthers: "repeated from another process: what has ended",
	FindsThenQueues:  "repeated from another process: at the same time",
	TogetherAlone:    "repeated from another process: several",

	ForgetsOnRelease:  "tokens rise through release",
	ForgetsOnDeletion: "tokens rise through deletion",
	RepeatsLower:      "a repeated acquire finds its grant",
	BreakKeepsToken:   "break takes the lock away",
	TokenPerRenewal:   "tokens rise through release",

	Barges:            "nobody barges in after a release",
	BargesAfterExpiry: "nobody barges in after an expiry",
	LastInFirstOut:    "first come, first served",
	WaitersNeverDie:   "a row of crashed waiters costs at most 3 s",
	ForgetsWaiters:    "a place that is refreshed is kept",
	ClaimsForTTL:      "a crash with the lock handed over costs the claim time",
	ClaimsForClaimTTL: "a claim is never longer than the TTL asked for",
	ClaimsForGood:     "a grant from the queue lasts after its first renewal",
	HeadTakesQueue:    "a place can be given up",
	LosesGrantedPlace: "giving up a granted place hands over",
	WaitsForRelease:   "expiry while others wait",
	GivesUpSilently:   "giving up a granted place is hinted",
	Silent:            "a hand-over is hinted",
	HintsAnotherToken: "a hand-over is hinted",

	LetsOneMoreWait:  "a full queue refuses who would wait",
	CountsTheDead:    "the dead do not fill a queue",
	BoundsRepeats:    "a repeat keeps its place in a full queue",
	BoundsTheFree:    "readers come in whatever the bound",
	LooksThenWaits:   "a bounded queue, wanted by many at once",
	RefusesAndQueues: "a full queue refuses who would wait",

	ReadersOvertake:   "readers behind a waiting writer wait",
	SmallOvertakeBig:  "a big request is not starved by small ones",
	OneTooMany:        "permits up to the capacity",
	OneTooFew:         "permits up to the capacity",
	CountsReturns:     "a permit that comes back too late",
	MixesCapacities:   "another capacity is an error",
	DowngradeGap:      "downgrade leaves no gap",
	DowngradeToken:    "downgrade lets readers in",
	DowngradeAlone:    "a downgrade is hinted",
	DowngradesWaiters: "only a holder is downgraded",

	ReleasesTooSoon:   "nobody comes in while a transaction depends on a lease",
	BreaksTooSoon:     "nobody comes in while a transaction depends on a lease",
	DowngradesTooSoon: "nobody comes in while a transaction depends on a lease",
	DependsOnTheDead:  "no transaction depends on a lease that has ended",

	MovesACopy:      "a lock has one taker",
	MovesByRelease:  "a move lets nobody in",
	MovesToken:      "a lock that is moved goes on",
	MovesToldToken:  "an attempt that comes late is another grant",
	MovesWaiters:    "only a holder is moved",
	MovesOnce:       "a repeated move finds itself",
	MovesInSecret:   "a move shows its new owner",
	MovesForTheRest: "a move gives the time that it says",

	RenamesUntilRenewed: "later requests do not show the old owner again",
	RenamesWaiters:      "a waiter is not renamed",
	RenamesAndProlongs:  "a rename does not prolong",
	RenamesAll:          "readers and permits can be renamed",
	RenamesBack:         "a rename brings nothing back",
	RenamesAndServes:    "a rename disturbs no waiter",
	RenamesHostile:      "bad renames are refused",

	TogetherInPart:   "several or none",
	TogetherInTurn:   "several at once, wanted by many",
	TogetherOnce:     "a repeated request for several finds itself",
	TogetherMisnames: "several or none",
	TogetherForgets:  "a repeat for several that is refused leaves nothing",

	BatchStops:       "one bad key does not spoil a batch",
	BatchOfHundred:   "a large batch",
	BatchRefused:     "an illegal claim does not spoil a batch",
	BatchFirstOnly:   "a batch renews every claim for the whole TTL",
	TakesAnyKey:      "illegal keys are refused",
	RaisesNothing:    "a raised token is passed",
	LowersTokens:     "a raised token is passed",
	LivesTwice:       "all handles see one life of the server",
	LacksInSilence:   "what a store lacks is refused",
	TrimsKeys:        "odd keys are different locks",
	FoldsCase:        "odd keys are different locks",
	PrefixIsPattern:  "a prefix is compared byte by byte",
	RoundsTTL:        "a bad TTL changes nothing",
	TakesZeroWeight:  "bad requests are refused",
	ReleasesForShow:  "a cancelled context has no effect",
	AcquiresInSecret: "a cancelled context has no effect",

	ShowsIDs:         "inspect shows holders and waiters in order",
	TrimsOwners:      "inspect shows owners as they were given",
	RefusalShowsID:   "a refusal tells who holds",
	BreakDropsQueue:  "break hands over to the next waiter",
	BreakCanBeUndone: "break takes the lock away",
	GrantsByOwner:    "break of one grant leaves the next alone",
	LooksThenBreaks:  "break of one grant racing with the next",
}
