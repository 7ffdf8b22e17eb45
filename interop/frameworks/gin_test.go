package frameworks

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	batongin "github.com/batonhq/baton/adapters/gin"
)

func init() { gin.SetMode(gin.ReleaseMode) }

func serveGin(_ *testing.T, s *shop) http.Handler {
	limit, idempotent := s.limit, s.idempotent
	payments := func(c *gin.Context) { s.gin(c) }

	r := gin.New()
	if s.recovers == outside {
		r.Use(gin.RecoveryWithWriter(io.Discard))
	}
	r.Use(func(c *gin.Context) { c.Header("Outer", "yes") })
	r.GET("/shops/:shop", batongin.Middleware(limit), func(c *gin.Context) { c.String(http.StatusOK, "a shop") })
	r.GET("/shops/:shop/live", batongin.Middleware(limit), func(c *gin.Context) {
		c.String(http.StatusOK, "one\n")
		c.Writer.Flush()
		<-s.leave
		c.String(http.StatusOK, "two\n")
	})
	r.HEAD("/shops/:shop", batongin.Middleware(limit), func(c *gin.Context) { c.Status(http.StatusOK) })
	if s.recovers == inside {
		r.POST("/shops/:shop/:what", batongin.Middleware(limit), batongin.Middleware(idempotent), gin.RecoveryWithWriter(io.Discard), ginErrors, payments)
		return r
	}
	r.POST("/shops/:shop/:what", batongin.Middleware(limit), batongin.Middleware(idempotent), ginErrors, payments)
	return r
}

// ginErrors answers what handlers leave in c.Errors.
func ginErrors(c *gin.Context) {
	c.Next()
	switch err := c.Errors.Last(); {
	case err == nil:
	case errors.Is(err, errNoMoney):
		c.JSON(http.StatusUnprocessableEntity, gin.H{"error": err.Error()})
	default:
		c.JSON(http.StatusInternalServerError, gin.H{"error": "Internal Server Error"})
	}
}

func (s *shop) gin(c *gin.Context) {
	body, err := c.GetRawData()
	if err != nil {
		panic(err)
	}
	text, err := s.handle(c.Request.Context(), c.Param("shop"), c.Param("what"), string(body))
	switch {
	case err != nil:
		_ = c.Error(err)
	case c.Param("what") == "empty":
		c.Status(http.StatusNoContent)
	case c.Param("what") == "stream":
		lines := []string{"one\n", "two\n"}
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, lines[0])
			lines = lines[1:]
			return len(lines) > 0
		})
	default:
		c.SetCookie("a", "1", 0, "", "", false, false)
		c.SetCookie("b", "2", 0, "", "", false, false)
		c.Header("Location", "/payments/1")
		c.Data(http.StatusCreated, "application/json", []byte(text))
	}
}
