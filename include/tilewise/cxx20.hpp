// Says what is wrong where a program includes Tilewise in an older C++, before its compiler does.
#pragma once

static_assert(__cplusplus >= 202002L,
              "Tilewise needs C++20: compile with -std=c++20, or use the C interface tilewise.h");
