//! Tests of transactions. Those of transactions in the log are in `durability`.
//!
//! | module | checks |
//! |---|---|
//! | `transaction_steps` | own writes, what conflicts and what does not, limits, exclusion of other writers |
//! | `transaction_histories` | random histories are serializable |

mod transaction_histories;
mod transaction_steps;
