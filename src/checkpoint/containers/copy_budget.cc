#include "checkpoint/containers/copy_budget.h"

#include "base/text.h"

namespace pawl::checkpoint {

Status CopyBudget::exceeded() const {
  Error error{Code::full, text("names and lists that many of its values share would take more than ", bytes_max_,
                               " bytes, far more than the file says them in: no known program writes such a file. If "
                               "it is yours, load it where it was written, and save it again under short names")};
  return where_.empty() ? error : std::move(error).within(where_);
}

}  // namespace pawl::checkpoint
