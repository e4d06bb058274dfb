// `make test-compile`: the kernels that a test run does not compile.
#include "compiled.hpp"

namespace tilewise::backends::hopper {
namespace {

TEST_F(HopperCompiled, RestOfAttentionKeepsToRegisters) { attention_keeps_to_registers(Registers::rest); }
TEST_F(HopperCompiled, RestOfExpertLayersKeepsToRegisters) { expert_layers_keep_to_registers(Registers::rest); }
TEST_F(HopperCompiled, RestOfExpertGradientsKeepsToRegisters) { expert_gradients_keep_to_registers(Registers::rest); }
TEST_F(HopperCompiled, RestOfLinearLayersKeepsToRegisters) { linear_layers_keep_to_registers(Registers::rest); }

}  // namespace
}  // namespace tilewise::backends::hopper
