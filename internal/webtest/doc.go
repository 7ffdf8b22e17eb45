// Package webtest serves real requests with the web frameworks of docs/web.md, by the code
// of that page. It is a module of its own, so that nobody who imports Baton gets them.
package webtest
