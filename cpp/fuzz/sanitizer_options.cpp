// Defaults of AddressSanitizer for all targets; the variable ASAN_OPTIONS overrides them.
//
// Walking the stack at each allocation, and freed memory of 256 MiB that is touched anew, are a quarter
// of the time of inputs of a kilobyte. What is found is the same: freed memory of many inputs is kept.
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=1:quarantine_size_mb=16";
}
