//! What the server reports of itself.

mod info;
