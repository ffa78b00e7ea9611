//! A page as it arrives: what of the bytes from a connection is page, and when it is whole.

use super::inflate::{InflateError, Inflater};
use super::response::{Encoding, Part, ResponseError, ResponseReader};

/// Error of a response without a page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Not an HTTP response.
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// The server responds, but not with a page.
    #[error("the server responded with {0}; does it serve this path?")]
    Status(u16),
    /// The page has a content encoding that was not requested.
    #[error("the page is encoded in another way than gzip")]
    Encoding,
    /// The page is larger than allowed.
    #[error("the page is larger than {0} bytes; is this the path of a model server?")]
    TooLarge(usize),
    /// The page can't be inflated.
    #[error("the page is compressed, and {0}")]
    Damaged(InflateError),
}

/// Reads pages out of responses.
#[derive(Debug)]
pub struct PageReader {
    response: ResponseReader,
    body: Body,
    /// The largest page, in bytes.
    limit: usize,
}

#[derive(Debug)]
enum Body {
    /// Uncompressed, with so many more bytes allowed.
    Plain(usize),
    /// Compressed; so many more bytes are allowed, besides the limit on what they become.
    Gzip(Box<Inflater>, usize),
}

impl PageReader {
    /// A reader of pages of at most so many bytes, inflated.
    pub fn new(limit: usize) -> Self {
        Self { response: ResponseReader::default(), body: Body::Plain(limit), limit }
    }

    /// Expects the start of a response.
    pub fn restart(&mut self) {
        self.response.restart();
        self.body = Body::Plain(self.limit);
    }

    /// Takes bytes from the connection and hands over what of them is page. `Some` when it
    /// is whole: whether the connection can take another request.
    ///
    /// # Errors
    /// `PageError` if the response has no page. The connection can't be used again.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        piece: &mut impl FnMut(&[u8]),
    ) -> Result<Option<bool>, PageError> {
        loop {
            match self.response.next(&mut bytes)? {
                Part::More => return Ok(None),
                Part::Head(head) if head.status != 200 => return Err(PageError::Status(head.status)),
                // A length in the head decides before anything is read.
                Part::Head(head) if head.length.is_some_and(|length| length > self.limit as u64) => {
                    return Err(PageError::TooLarge(self.limit));
                }
                Part::Head(head) => match head.encoding {
                    Encoding::Identity => self.body = Body::Plain(self.limit),
                    Encoding::Gzip => {
                        self.body = Body::Gzip(Box::new(Inflater::new(self.limit)), self.limit);
                    }
                    Encoding::Other => return Err(PageError::Encoding),
                },
                Part::Body(bytes) => self.body(bytes, piece)?,
                Part::End { reusable } => {
                    self.finish(piece)?;
                    // What is left belongs to no response, nor would what follows.
                    return Ok(Some(reusable && bytes.is_empty()));
                }
            }
        }
    }

    /// The server has closed the connection.
    ///
    /// # Errors
    /// `PageError` if the page is incomplete.
    pub fn closed(&mut self, piece: &mut impl FnMut(&[u8])) -> Result<(), PageError> {
        self.response.closed()?;
        self.finish(piece)
    }

    fn body(&mut self, bytes: &[u8], piece: &mut impl FnMut(&[u8])) -> Result<(), PageError> {
        let limit = self.limit;
        let (Body::Plain(left) | Body::Gzip(_, left)) = &mut self.body;
        *left = left.checked_sub(bytes.len()).ok_or(PageError::TooLarge(limit))?;
        match &mut self.body {
            Body::Plain(_) => piece(bytes),
            Body::Gzip(inflater, _) => inflater.feed(bytes, piece).map_err(|error| damaged(error, limit))?,
        }
        Ok(())
    }

    fn finish(&mut self, piece: &mut impl FnMut(&[u8])) -> Result<(), PageError> {
        match &mut self.body {
            Body::Plain(_) => Ok(()),
            Body::Gzip(inflater, _) => inflater.finish(piece).map_err(|error| damaged(error, self.limit)),
        }
    }
}

fn damaged(error: InflateError, limit: usize) -> PageError {
    match error {
        InflateError::TooLarge => PageError::TooLarge(limit),
        InflateError::Damaged(_) => PageError::Damaged(error),
    }
}
