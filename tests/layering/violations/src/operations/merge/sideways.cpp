// Breaks a rule on purpose: tests/layering checks that check_includes.py sees it.
#include "operations/attention/call.hpp"
