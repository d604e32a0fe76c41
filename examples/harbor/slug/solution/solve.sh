#!/bin/sh
cat > /app/slug.js <<'END'
exports.slug = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "");
END
