// An interface that no library of Tilewise has: check_exports.py must see that.
#pragma once

namespace tilewise {

class Plan;
[[nodiscard]] int absent(const Plan& plan);

}  // namespace tilewise
