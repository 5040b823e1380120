// Instruction sets compiled into this library, and the one in use.
#pragma once
#include <string>
#include <vector>

namespace seeddelta {

// Names that this machine can run, slowest first: "scalar"; "ssse3", "avx2", "avxvnni", "avx512bw",
// "avx512vnni", "avx512", "amx" on x86; "neon", "neon_dotprod" on AArch64.
std::vector<std::string> isa_available();
// The one in use: the last of isa_available() unless SEEDDELTA_FORCE_ISA or isa_select says otherwise.
std::string isa_active();
// Throws std::invalid_argument for a name that this machine cannot run.
void isa_select(const std::string &name);

} // namespace seeddelta
