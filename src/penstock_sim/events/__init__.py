"""Model of events: the library's session and cache, driven event by event over flows of bytes."""
