/** The views, in the order of their tabs. README.md beside this file says how one is added. */

import heads from "./heads.js";
import layer from "./layer.js";
import stream from "./stream.js";
import token from "./token.js";

export const VIEWS = [heads, token, layer, stream];
