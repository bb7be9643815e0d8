#include "common/scd/coding.h"

namespace baton {

const char* CodingName(Coding coding) {
  switch (coding) {
    case Coding::kRaw:
      return "raw";
    case Coding::kQ4:
      return "q4";
    case Coding::kReuse:
      return "reuse";
    case Coding::kSelective:
      return "selective";
  }
  return "unknown";
}

std::optional<Coding> ParseCoding(std::string_view name) {
  for (const Coding coding : {Coding::kRaw, Coding::kQ4, Coding::kReuse, Coding::kSelective}) {
    if (name == CodingName(coding)) return coding;
  }
  return std::nullopt;
}

}  // namespace baton
