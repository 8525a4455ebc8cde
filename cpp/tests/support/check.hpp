// The smallest test harness: a failed check names its place and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);        \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (false)
