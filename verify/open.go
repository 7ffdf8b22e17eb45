package verify

import (
	"context"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/verify/served"
)

// servedScheme is that of a store which this program lends to its clients.
const servedScheme = "served://"

func openStore(ctx context.Context, url string) (driver.Store, error) {
	if addr, ok := strings.CutPrefix(url, servedScheme); ok {
		return served.Dial(ctx, addr)
	}
	return open.Store(ctx, url)
}
