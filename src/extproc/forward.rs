//! Methods of `AsyncWrite` that a wrapper of a connection passes on unchanged.

/// Methods of `AsyncWrite` besides the two that write, passed on to the field `io`.
macro_rules! forward_all_but_writes {
    () => {
        #[inline]
        fn poll_flush(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.io).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.io).poll_shutdown(context)
        }

        fn is_write_vectored(&self) -> bool {
            self.io.is_write_vectored()
        }
    };
}

pub(super) use forward_all_but_writes;
