//! Transactions. Those in the log are tested in `durability`.
//!
//! | module | checks |
//! |---|---|
//! | `transaction_steps` | own writes, what conflicts and what does not, limits, exclusion of other writers |
//! | `transaction_histories` | random histories are serializable |

mod transaction_histories;
mod transaction_steps;
