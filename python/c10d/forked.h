// Whether this process was forked from the one that has loaded the extension: from a trainer, or from a rank of a test.
//
// A fork has a copy of each group, without its threads; and its connections are the parent's own: who shuts one down there
// cuts it off here. So a fork ends no group and waits for none, it only forgets them.
#pragma once

namespace pawl {

// One load. Any thread.
bool forked();

}  // namespace pawl
