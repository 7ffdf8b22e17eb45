// Package jsonlist keeps null out of JSON where a list is meant: the length of an empty
// list is 0 for a script, and null an error.
package jsonlist

import (
	"encoding"
	"encoding/json"
	"reflect"
)

// Filled is v with empty slices and maps in place of nil ones, at every depth. It changes
// nothing that v leads to, and ignores types that write their own JSON.
func Filled(v any) any {
	if v == nil {
		return nil
	}
	filled := reflect.New(reflect.TypeOf(v)).Elem()
	filled.Set(reflect.ValueOf(v))
	fill(filled)
	return filled.Interface()
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// fill replaces nil values in v. v may be an embedded field that cannot be set, but whose
// own fields can.
func fill(v reflect.Value) {
	for _, t := range []reflect.Type{v.Type(), reflect.PointerTo(v.Type())} {
		if t.Implements(marshaler) || t.Implements(textMarshaler) {
			return
		}
	}
	// of is a copy of a value that v leads to.
	of := func(found reflect.Value) reflect.Value {
		c := reflect.New(found.Type()).Elem()
		c.Set(found)
		fill(c)
		return c
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() || v.Type().Field(i).Anonymous && f.Kind() == reflect.Struct {
				fill(f)
			}
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); v.Len() > 0 && (k <= reflect.Complex128 || k == reflect.String) {
			return // there is nothing to fill
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(of(v.Index(i)))
		}
		v.Set(c)
	case reflect.Map:
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for key, value := range v.Seq2() {
			c.SetMapIndex(key, of(value))
		}
		v.Set(c)
	case reflect.Pointer:
		if !v.IsNil() {
			v.Set(of(v.Elem()).Addr())
		}
	case reflect.Interface:
		if !v.IsNil() {
			v.Set(of(v.Elem()))
		}
	}
}
