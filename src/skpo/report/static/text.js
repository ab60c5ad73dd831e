// Token numbers back to text. A character whose bytes lie in several tokens belongs to the token that completes it.

class Vocabulary {
  constructor({ ids, text, special }) {
    this.ids = ids;
    this.text = text;
    this.special = new Set(special);
  }

  pieces(tokens) {
    const out = new Array(tokens.length);
    let decoder = null; // only while a broken character is open
    for (let i = 0; i < tokens.length; i++) {
      const piece = this.text[tokens[i]];
      if (typeof piece === 'string' && decoder === null) {
        out[i] = piece;
        continue;
      }
      decoder = decoder || new TextDecoder();
      if (typeof piece === 'string') {
        out[i] = decoder.decode() + piece; // what was open can't be completed any more
        decoder = null;
      } else out[i] = decoder.decode(Uint8Array.from(piece), { stream: true });
    }
    if (decoder !== null && out.length) out[out.length - 1] += decoder.decode();
    return out;
  }

  join(tokens) {
    return this.pieces(tokens).join('');
  }
}
